"""Context checks in threads: one at a time for each subagent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from retinue.core.brief import Brief
from retinue.core.budget import Budget
from retinue.core.contract import Context
from retinue.core.subagent import Subagent
from retinue.core.task_config import TaskConfig
from retinue.steward.contract_factory import SpawnRequest
from support.fakes import FakeMachine, FakeRuntime, FakeTasks
from support.stage import Stage, make_contract_factory

BOUND_S = 20.0
CALLS = 5


class SlowTasks(FakeTasks):
    """Checks that last until the test lets them end."""

    def __init__(self) -> None:
        super().__init__(TaskConfig(max_concurrent=9, min_timeout_ms=1))
        self.began = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.under_way = self.most = 0

    def resolve_contexts(
        self, brief: Brief, base: Path, config: TaskConfig, parent: Subagent | None
    ) -> Context:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        self.began.release()
        assert self.go_on.wait(BOUND_S)
        self.under_way -= 1
        return super().resolve_contexts(brief, base, config, parent)


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[tuple[Stage, Subagent]]:
    stage = Stage(tmp_path / "retinue.db")
    brief = Brief("work", argv=("true",), id="parent", delegation_depth=1, context_paths=["a"])
    (made,) = stage.do(stage.spawned(SpawnRequest(briefs=[brief], base=Path("/"))))
    yield stage, made
    stage.close()


@pytest.mark.parametrize("leaves", [False, True], ids=["waits", "leaves"])
def test_each_subagent_has_one_context_check_at_a_time(
    parent: tuple[Stage, Subagent], leaves: bool
) -> None:
    stage, above = parent
    tasks = SlowTasks()
    factory = make_contract_factory(tasks, FakeRuntime(FakeMachine()), lambda _: Budget())
    task = stage.records.get_task(stage.task)
    brief = Brief("part", argv=("true",), context_paths=["a"])
    request = SpawnRequest(briefs=[brief], base=Path("/"), parent=above)

    async def whole() -> None:
        first = asyncio.create_task(factory.make_admission(task, request))
        assert await asyncio.to_thread(tasks.began.acquire, timeout=BOUND_S)
        if leaves:
            first.cancel()
        others = [asyncio.create_task(factory.make_admission(task, request)) for _ in range(CALLS)]
        another = await asyncio.to_thread(tasks.began.acquire, timeout=0.3)
        tasks.go_on.set()
        assert not another, "a second check was begun beside the first"
        with suppress(asyncio.CancelledError):
            await first
        assert first.cancelled() == leaves
        await asyncio.gather(*others)

    asyncio.run(asyncio.wait_for(whole(), BOUND_S))
    assert tasks.most == 1
