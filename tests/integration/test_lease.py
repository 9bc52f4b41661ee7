"""A child whose lease is not renewed is killed by its own init, whatever became of its node."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from retinue.core.ids import SubagentId, TaskId
from retinue.core.result import Ending, EndKind
from retinue.core.task_config import INHERITED, ISOLATED, Boundary
from retinue.ports import LaunchOrder
from retinue.runtime.child_process import ChildProcess
from retinue.runtime.process_runtime import ProcessRuntime

BOUND_S = 30.0
IGNORES = "trap '' INT TERM; echo up; while :; do sleep 0.02; done"


@contextmanager
def opened() -> Iterator[ProcessRuntime]:
    runtime = ProcessRuntime()
    try:
        yield runtime
    finally:
        runtime.close()


def read_boottime_ms() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def renew(lease: Path, for_ms: int) -> None:
    with lease.open("r+b" if lease.exists() else "wb") as file:
        file.write((read_boottime_ms() + for_ms).to_bytes(8, "little"))


@pytest.fixture(params=[INHERITED, ISOLATED])
def order(request: pytest.FixtureRequest, tmp_path: Path) -> LaunchOrder:
    for name in ("workspace", "runtime"):
        (tmp_path / name).mkdir()
    lease = tmp_path / "lease"
    renew(lease, 60_000)
    return LaunchOrder(
        task=TaskId("task"),
        subagent=SubagentId("subagent"),
        attempt=1,
        argv=("sh", "-c", IGNORES),
        environment={"PATH": "/usr/bin:/bin"},
        workspace=tmp_path / "workspace",
        runtime_folder=tmp_path / "runtime",
        timeout_ms=60_000,
        graces_ms=(60_000, 60_000),
        output_limit_bytes=10_000,
        boundary=Boundary(mode=request.param),
        lease=lease,
    )


Scene = Callable[[ChildProcess, Path], Awaitable[Ending]]


def play(order: LaunchOrder, scene: Scene) -> Ending:
    async def whole(runtime: ProcessRuntime) -> Ending:
        async with asyncio.timeout(BOUND_S):
            if order.boundary.mode == ISOLATED and (why := await runtime.isolation_missing()):
                pytest.skip(why)
            assert order.lease is not None
            child = await runtime.launch(order)
            try:
                return await scene(child, order.lease)
            finally:
                child.kill()
                await child.wait_ended()

    with opened() as runtime:
        return asyncio.run(whole(runtime))


def test_it_is_killed_when_the_lease_ends_and_not_before(order: LaunchOrder) -> None:
    async def scene(child: ChildProcess, lease: Path) -> Ending:
        renew(lease, 300)
        await child.release()
        renew(lease, 1_200)
        until = time.monotonic() + 1.2
        ending = await child.wait_ended()
        assert -0.05 < time.monotonic() - until < 5
        return ending

    ending = play(order, scene)
    assert ending.kind is EndKind.STOPPED and "lease" in ending.error
    assert ending.signals_sent == ("SIGKILL",)


def test_the_end_of_the_lease_cuts_a_stop_short(order: LaunchOrder) -> None:
    log = order.runtime_folder / "stdout.log"

    async def scene(child: ChildProcess, lease: Path) -> Ending:
        await child.release()
        while not log.exists() or not log.stat().st_size:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        child.stop()
        renew(lease, 200)
        return await child.wait_ended()

    ending = play(order, scene)
    assert ending.kind is EndKind.STOPPED
    assert ending.signals_sent[-1] == "SIGKILL" and "SIGTERM" not in ending.signals_sent


def test_nothing_is_run_once_the_lease_is_over(order: LaunchOrder) -> None:
    async def scene(child: ChildProcess, lease: Path) -> Ending:
        renew(lease, 0)
        return await child.wait_ended()

    ran = order.workspace / "ran"
    assert play(replace(order, argv=("touch", str(ran))), scene).kind is EndKind.NEVER_RAN
    assert not ran.exists()


def test_a_lease_that_cannot_be_read_is_over(order: LaunchOrder) -> None:
    async def scene(child: ChildProcess, lease: Path) -> Ending:
        os.truncate(lease, 0)
        return await child.wait_ended()

    assert play(order, scene).kind is EndKind.NEVER_RAN


def test_a_command_that_ends_in_time_ends_as_usual(order: LaunchOrder) -> None:
    async def scene(child: ChildProcess, lease: Path) -> Ending:
        await child.release()
        return await child.wait_ended()

    ending = play(replace(order, argv=("sh", "-c", "exit 4")), scene)
    assert (ending.kind, ending.exit_code, ending.error) == (EndKind.EXITED, 4, "")
