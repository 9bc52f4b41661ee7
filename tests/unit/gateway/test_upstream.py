"""Choice of the proxy for a provider."""

from __future__ import annotations

import pytest

from retinue.gateway.upstream import select_proxy

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
