"""Inits: each serves a single attempt, and the next one is made ahead."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from integration.commands import (
    BOUND_S,
    SOURCE,
    identity_from,
    is_over,
    other_steward,
    shell,
    until,
)
from retinue.core.errors import LaunchFailed
from retinue.core.result import Ending, EndKind
from retinue.core.task_config import Boundary, Limits
from retinue.ports import LaunchOrder
from retinue.runtime import fork_server_client, procfs
from retinue.runtime.child_process import ChildProcess
from retinue.runtime.process_runtime import ProcessRuntime
from support.conformance import play
from support.runtimes import needs_namespace, order_in
from support.traces import children_of

pytestmark = needs_namespace
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
Orders = Callable[..., LaunchOrder]
Seen = tuple[int, Ending, str]  # whose child it was, how it ended, what it said


@pytest.fixture
def runtime() -> Iterator[ProcessRuntime]:
    runtime = ProcessRuntime()
    yield runtime
    runtime.close()


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    """Each in folders of its own."""
    numbers = iter(range(1, 100))
    return lambda script, **changes: plain(tmp_path / str(next(numbers)), script, **changes)


def plain(folder: Path, script: str, **changes: Any) -> LaunchOrder:
    folder.mkdir()
    return shell(order_in(folder), script, **changes)


async def launched(runtime: ProcessRuntime, order: LaunchOrder) -> ChildProcess:
    child = await runtime.launch(order)
    await child.release()
    return child


async def done(runtime: ProcessRuntime, order: LaunchOrder) -> ChildProcess:
    child = await launched(runtime, order)
    await child.wait_ended()
    return child


async def seen(runtime: ProcessRuntime, order: LaunchOrder) -> Seen:
    child = await done(runtime, order)
    said = (order.runtime_folder / "stdout.log").read_text()
    return child.identity.pid, await child.wait_ended(), said


def test_the_next_attempt_has_another_init_and_finds_nothing_of_the_last(
    runtime: ProcessRuntime, orders: Orders
) -> None:
    look = "pwd; umask; set -- /proc/[0-9]*; echo $#; env; ulimit -n; ls /proc/self/fd"

    async def scene() -> None:
        messy = orders("umask 0; export LEFT=1; cd /; sleep 60 & setsid sleep 60 & exit 3")
        first, ending, _ = await seen(runtime, messy)
        assert ending.exit_code == 3
        order = orders(look)
        second, _, said = await seen(runtime, order)
        other = ProcessRuntime()
        _, _, fresh = await seen(other, again := orders(look))
        other.close()
        assert first != second
        assert said.replace(str(order.workspace), "") == fresh.replace(str(again.workspace), "")

    play(scene)


@pytest.mark.parametrize("mode", ["inherited", "isolated"])
def test_no_process_serves_two_attempts(
    runtime: ProcessRuntime, orders: Orders, mode: Literal["inherited", "isolated"]
) -> None:
    async def scene() -> None:
        if missing := await runtime.isolation_missing():
            pytest.skip(missing)
        served = [
            await done(runtime, orders("true", boundary=Boundary(mode=mode))) for _ in "12345"
        ]
        assert len({(each.identity.pid, each.identity.start_ticks) for each in served}) == 5

    play(scene)


def test_a_limit_of_file_sizes_does_not_cut_the_recorded_output(
    runtime: ProcessRuntime, orders: Orders
) -> None:
    small = Boundary(mode="inherited", limits=Limits(file_mb=2))
    speaks = "head -c 4000000 /dev/zero | tr '\\0' x"

    async def scene() -> None:
        large = orders(speaks, boundary=small, output_limit_bytes=5_000_000)
        _, ending, said = await seen(runtime, large)
        assert (len(said), ending.stdout_cut) == (4_000_000, False)

    play(scene)


@needs_root
def test_a_process_that_entered_from_outside_ends_with_the_attempt(
    runtime: ProcessRuntime, orders: Orders
) -> None:
    async def scene() -> None:
        child = await launched(runtime, order := orders("touch up; until test -e go; do :; done"))
        words = ["nsenter", "-t", str(child.identity.pid), "-p", "sleep", "60"]
        guest = await asyncio.create_subprocess_exec(*words)
        await until((order.workspace / "up").exists)
        await until(lambda: bool(procfs.list_process_tree(guest.pid)))
        (order.workspace / "go").touch()
        assert (await child.wait_ended()).clean
        assert await guest.wait() != 0
        await until(lambda: is_over(child.identity))

    play(scene)


@pytest.mark.parametrize("how", ["killed", "refused"])
def test_an_init_that_ended_before_go_is_reported_at_the_release(
    runtime: ProcessRuntime, orders: Orders, how: str
) -> None:
    said = {"killed": "its init ended before", "refused": "EISDIR"}

    async def scene() -> None:
        await seen(runtime, orders("true"))
        order = orders("true")
        if how == "refused":
            (order.runtime_folder / "exit.json.new").mkdir()
        child = await runtime.launch(order)
        if how == "killed":
            os.kill(child.identity.pid, signal.SIGKILL)
        await until(lambda: is_over(child.identity))
        for _ in range(2):  # turns of the loop, in which it is heard
            await asyncio.sleep(0)
        with pytest.raises(LaunchFailed, match=said[how]):
            await child.release()
        assert (await child.wait_ended()).kind is EndKind.LOST

    play(scene)


def test_one_that_runs_while_its_runtime_is_closed_is_seen_to_its_end(
    runtime: ProcessRuntime, orders: Orders
) -> None:
    async def scene() -> None:
        child = await launched(runtime, order := orders("until test -e go; do :; done; exit 4"))
        runtime.close()
        (order.workspace / "go").touch()
        assert (await child.wait_ended()).exit_code == 4
        assert procfs.stat(child.identity.pid) is None

    play(scene)


def test_an_init_that_still_exits_is_gone_with_its_runtime(
    runtime: ProcessRuntime, orders: Orders
) -> None:
    before = set(children_of(os.getpid()))

    async def scene() -> None:
        child = await launched(runtime, orders("true"))
        await child.wait_ended()
        runtime.close()

    play(scene)
    assert set(children_of(os.getpid())) == before


def test_a_stop_that_comes_too_late_stops_no_other_attempt(
    runtime: ProcessRuntime, orders: Orders
) -> None:
    async def scene() -> None:
        child = await launched(runtime, order := orders("true"))
        await until((order.runtime_folder / "exit.json").exists)
        child.stop()
        assert (await child.wait_ended()).clean
        child.stop()
        pid, ending, _ = await seen(runtime, orders("true"))
        assert (pid != child.identity.pid, ending.clean) == (True, True)
        await until(lambda: is_over(child.identity))

    play(scene)


async def made_ahead(runtime: ProcessRuntime, orders: Orders) -> int:
    """Return the pid of the init that waits for the next order."""
    before = set(children_of(os.getpid()))
    child = await done(runtime, orders("true"))
    waiting = set[int]()

    def one_waits() -> bool:
        waiting.clear()
        waiting.update(set(children_of(os.getpid())) - before - {child.identity.pid})
        return is_over(child.identity) and len(waiting) == 1

    await runtime.warm()
    before |= {server for server in children_of(os.getpid()) if is_fork_server(server)}
    await until(one_waits)
    return waiting.pop()


def is_fork_server(pid: int) -> bool:
    """Return whether the process leads no namespace of its own."""
    return procfs.count_namespaces(pid) == procfs.count_namespaces(os.getpid())


def test_an_init_that_died_while_it_waited_is_replaced(
    runtime: ProcessRuntime, orders: Orders
) -> None:
    async def scene() -> None:
        waiting = await made_ahead(runtime, orders)
        os.kill(waiting, signal.SIGKILL)
        await until(lambda: has_exited(waiting))
        pid, ending, _ = await seen(runtime, orders("true"))
        assert (pid != waiting, ending.clean) == (True, True)
        assert procfs.stat(waiting) is None

    play(scene)


def has_exited(pid: int) -> bool:
    found = procfs.stat(pid)
    return found is None or found.state == "Z"


def test_an_init_that_is_asked_to_stop_while_it_waits_exits(
    runtime: ProcessRuntime, orders: Orders
) -> None:
    async def scene() -> None:
        waiting = await made_ahead(runtime, orders)
        os.kill(waiting, signal.SIGTERM)
        await until(lambda: has_exited(waiting))
        assert (await seen(runtime, orders("true")))[1].clean

    play(scene)


def test_an_unused_init_exits_after_a_while(
    runtime: ProcessRuntime, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server_client, "KEPT_S", 0.1)

    async def scene() -> None:
        waiting = await made_ahead(runtime, orders)
        await until(lambda: procfs.stat(waiting) is None)

    play(scene)
    play(scene)  # in another loop


def test_the_next_attempt_gets_the_init_that_was_made_ahead(
    runtime: ProcessRuntime, orders: Orders
) -> None:
    async def scene() -> None:
        # A process exists a moment before the pool knows it; until then an attempt gets another.
        waiting, taken = 0, -1
        while taken != waiting:
            waiting = await made_ahead(runtime, orders)
            taken = (await seen(runtime, orders("true")))[0]

    play(scene)


def test_no_init_made_ahead_outlives_its_runtime(runtime: ProcessRuntime, orders: Orders) -> None:
    isolated, before = Boundary(mode="isolated"), set(children_of(os.getpid()))

    async def scene() -> None:
        if missing := await runtime.isolation_missing():
            pytest.skip(missing)
        pid, waiting = 0, {-1}
        while pid not in waiting:  # the first of them had none
            waiting = set(children_of(os.getpid())) - before
            pid, ending, _ = await seen(runtime, orders("true", boundary=isolated))
            assert ending.clean

    play(scene)
    runtime.close()
    assert set(children_of(os.getpid())) == before


def test_an_attempt_is_over_before_its_boundary_is_taken_down(
    runtime: ProcessRuntime, orders: Orders
) -> None:
    async def scene() -> None:
        if missing := await runtime.isolation_missing():
            pytest.skip(missing)
        child = await launched(runtime, orders("true", boundary=Boundary(mode="isolated")))
        assert (await child.wait_ended()).clean
        pid = child.identity.pid
        assert pid in children_of(os.getpid())
        await until(lambda: pid not in children_of(os.getpid()))

    play(scene)


@pytest.mark.parametrize("where", ["end", "running"])
def test_those_of_a_killed_steward_go_when_they_have_nothing_to_do(
    orders: Orders, where: str
) -> None:
    order = orders("true" if where == "end" else "sleep 0.2; touch done")
    identity = identity_from(other_steward(order, where))
    asyncio.run(until(lambda: is_over(identity)))
    assert (order.workspace / "done").exists() == (where == "running")


SCENE = """
import asyncio, pathlib, subprocess, sys
sys.path[:0] = sys.argv[1:3]
from integration.test_inits import seen, plain
from retinue.runtime.process_runtime import ProcessRuntime
here = pathlib.Path(sys.argv[3])
async def main():
    runtime = ProcessRuntime()
    first, _, _ = await seen(runtime, plain(here / "1", "true"))
    subprocess.run(["mount", "-t", "tmpfs", "none", here], check=True)
    (here / "new").touch()
    second, _, said = await seen(runtime, plain(here / "2", f"ls {here}"))
    runtime.close()
    print(first != second, said.split())
asyncio.run(main())
"""


@needs_root
def test_a_later_mount_is_visible(tmp_path: Path) -> None:
    """By a steward in a mount namespace of its own, whose changes nobody is told of."""
    paths = [str(SOURCE), str(Path(__file__).parents[1]), str(tmp_path)]
    words = [sys.executable, "-c", SCENE, *paths]
    apart = ["unshare", "--mount", "--propagation", "private", *words]
    said = subprocess.run(apart, capture_output=True, text=True, timeout=BOUND_S)
    assert said.stdout == "True ['2', 'new']\n", said.stderr
