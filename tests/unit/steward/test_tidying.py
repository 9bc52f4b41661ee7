"""Garbage is collected when nobody waits, and not before."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from retinue.domain.ids import TaskId
from retinue.steward import tidying
from retinue.steward.tidying import Tidying

TASK = TaskId("t")


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> Iterator[asyncio.Queue[float]]:
    """Tells when everything was collected."""
    monkeypatch.setattr(tidying, "QUIET_S", 0.02)
    monkeypatch.setattr(tidying, "ENOUGH", 0)
    collected: asyncio.Queue[float] = asyncio.Queue()

    def hear(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            collected.put_nowait(asyncio.get_running_loop().time())

    before = gc.get_threshold()
    gc.callbacks.append(hear)
    yield collected
    gc.callbacks.remove(hear)
    gc.set_threshold(*before)


def test_everything_is_collected_once_nothing_changes_any_more(
    whole: asyncio.Queue[float],
) -> None:
    async def watch() -> None:
        tidy = Tidying()
        loop = asyncio.get_running_loop()
        for _ in range(5):
            tidy(TASK, [])
            last = loop.time()
            await asyncio.sleep(0)
        assert await asyncio.wait_for(whole.get(), 5) >= last + 0.02
        tidy(TASK, [])  # and once more after that
        await asyncio.wait_for(whole.get(), 5)
        assert whole.empty()

    asyncio.run(watch())
