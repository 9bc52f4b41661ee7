"""Choice of the proxy, and the timeout for silent answers."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from retinue.gateway import upstream
from retinue.gateway.upstream import SilenceTimeout, select_proxy

PROXIES = {"https": "http://proxy:3128", "http": "http://proxy:3128"}


@pytest.mark.parametrize(
    ("url", "proxies", "expected"),
    [
        ("https://api.example.com/v1", PROXIES, "http://proxy:3128"),
        ("https://api.example.com/v1", {}, None),
        ("https://api.example.com/v1", {"http": "http://proxy:3128"}, None),
        ("http://127.0.0.1:8080/v1", PROXIES, None),
        ("http://[::1]:8080/v1", PROXIES, None),
        ("http://localhost/v1", PROXIES, None),
        ("https://inside.corp/v1", PROXIES, None),
    ],
)
def test_the_proxy_comes_from_the_environment_except_for_this_machine(
    monkeypatch: pytest.MonkeyPatch, url: str, proxies: dict[str, str], expected: str | None
) -> None:
    monkeypatch.setenv("no_proxy", "inside.corp")
    assert select_proxy(url, proxies) == expected


class Answer:
    """Fake reply that records whether it was closed."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()

    def close(self) -> None:
        self.closed.set()


def test_a_silent_answer_is_closed_and_a_continuing_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upstream, "SILENCE_SECONDS", 0.02)

    async def scene() -> None:
        answer = Answer()
        with SilenceTimeout(cast(Any, answer)) as silence:
            # Longer than the timeout in total, but never silent for all of it.
            for _ in range(5):
                await asyncio.sleep(0.01)
                silence.broken = True
            assert not answer.closed.is_set()
            await asyncio.wait_for(answer.closed.wait(), 5)

    asyncio.run(scene())
