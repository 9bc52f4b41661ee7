"""Full garbage collections while the steward is idle."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from retinue.core.ids import TaskId
from retinue.steward import __main__
from retinue.steward.__main__ import IdleCollector

TASK = TaskId("t")


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> Iterator[asyncio.Queue[float]]:
    """Record of full garbage collections."""
    monkeypatch.setattr(__main__, "IDLE_SECONDS", 0.02)
    monkeypatch.setattr(__main__, "MIN_YOUNG_COLLECTIONS", 0)
    collected: asyncio.Queue[float] = asyncio.Queue()

    def hear(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            collected.put_nowait(asyncio.get_running_loop().time())

    before = gc.get_threshold()
    gc.callbacks.append(hear)
    yield collected
    gc.callbacks.remove(hear)
    gc.set_threshold(*before)


def test_a_full_collection_runs_once_the_steward_is_idle(
    whole: asyncio.Queue[float],
) -> None:
    async def watch() -> None:
        tidy = IdleCollector()
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
