"""The first process of an attempt is used for the next, which must not notice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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
from retinue.core.attempt_end import Ending, EndKind
from retinue.core.boundary import Boundary, Limits
from retinue.core.errors import LaunchFailed
from retinue.ports import LaunchOrder
from retinue.runtime import init_pool, procfs
from retinue.runtime.child_process import ProcessChild
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
    return shell(order_in(folder), script, lets_go=True, **changes)


async def launched(runtime: ProcessRuntime, order: LaunchOrder) -> ProcessChild:
    child = await runtime.launch(order)
    await child.release()
    return child


async def done(runtime: ProcessRuntime, order: LaunchOrder) -> ProcessChild:
    child = await launched(runtime, order)
    await child.wait_ended()
    child.retire()
    return child


async def seen(runtime: ProcessRuntime, order: LaunchOrder) -> Seen:
    child = await done(runtime, order)
    said = (order.runtime_folder / "stdout.log").read_text()
    return child.identity.pid, await child.wait_ended(), said


def test_the_next_attempt_has_the_same_init_and_finds_nothing_of_the_last(
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
        assert first == second
        assert said.replace(str(order.workspace), "") == fresh.replace(str(again.workspace), "")

    play(scene)


def test_what_an_attempt_took_is_its_own(runtime: ProcessRuntime, orders: Orders) -> None:
    async def scene() -> None:
        large = f"{sys.executable} -c 'x = b\"x\" * 200_000_000; sum(range(20_000_000))'"
        first, _, _ = await seen(runtime, wasteful := orders(large))
        second, _, _ = await seen(runtime, modest := orders("true"))
        assert first == second
        (much, long), (little, short) = took(wasteful), took(modest)
        assert much > 150_000 > 50_000 > little
        assert long > 100 > short

    play(scene)


def took(order: LaunchOrder) -> tuple[int, int]:
    record = json.loads((order.runtime_folder / "exit.json").read_text())
    return record["peak_kb"], record["cpu_ms"]


@needs_root
@pytest.mark.parametrize(
    "change",
    ["mkdir m && mount -t tmpfs none m", "renice -n 5 -u root", "chrt -i -p 0 1", "taskset -p 1 1"],
)
def test_who_was_changed_is_not_used_again(
    runtime: ProcessRuntime, orders: Orders, change: str
) -> None:
    look = "wc -l < /proc/mounts; nice; chrt -p $$ | cut -d: -f2; taskset -p $$ | cut -d: -f2"

    async def scene() -> None:
        first, _, before = await seen(runtime, orders(look))
        second, ending, _ = await seen(runtime, orders(change))
        third, _, after = await seen(runtime, orders(look))
        assert (first, ending.exit_code) == (second, 0)
        assert (third != second, after) == (True, before)

    play(scene)


@needs_root
def test_whoever_came_in_from_outside_ends_with_the_attempt(
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


@needs_root
def test_who_is_alone_knows_it_without_a_proc_of_its_own() -> None:
    code = (
        "from retinue.child.reuse_check import SurroundingsSnapshot as S; print(S().is_unchanged())"
    )
    words = [sys.executable, "-c", code]
    alone = subprocess.run(["unshare", "-pf", *words], capture_output=True, check=True)
    among_others = subprocess.run(words, capture_output=True, check=True)
    assert (alone.stdout, among_others.stdout) == (b"True\n", b"False\n")


def test_who_has_other_limits_is_another(runtime: ProcessRuntime, orders: Orders) -> None:
    async def scene() -> None:
        few = Boundary(mode="inherited", limits=Limits(open_files=100))
        first, _, _ = await seen(runtime, orders("true"))
        second, _, said = await seen(runtime, orders("ulimit -n", boundary=few))
        third, _, _ = await seen(runtime, orders("true"))
        fourth, _, _ = await seen(runtime, orders("true", boundary=few))
        assert (said, first, second) == ("100\n", third, fourth)
        assert first != second

    play(scene)


def test_limits_that_init_came_under_itself_are_not_those_of_a_larger_output(
    runtime: ProcessRuntime, orders: Orders
) -> None:
    small = Boundary(mode="inherited", limits=Limits(file_mb=2))
    speaks = "head -c 4000000 /dev/zero | tr '\\0' x"

    async def scene() -> None:
        await seen(runtime, orders("true", boundary=small))
        large = orders(speaks, boundary=small, output_limit_bytes=5_000_000)
        _, ending, said = await seen(runtime, large)
        assert (len(said), ending.stdout_cut) == (4_000_000, False)

    play(scene)


@pytest.mark.parametrize("how", ["killed", "refused"])
def test_an_end_at_the_gate_is_told_at_the_release(
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


def test_one_that_nobody_let_go_is_gone_with_its_runtime(
    runtime: ProcessRuntime, orders: Orders
) -> None:
    before = set(children_of(os.getpid()))

    async def scene() -> None:
        child = await launched(runtime, orders("true"))
        await child.wait_ended()
        runtime.close()

    play(scene)
    assert set(children_of(os.getpid())) == before


def test_nobody_is_used_again_before_the_end_of_its_attempt_is_recorded(
    runtime: ProcessRuntime, orders: Orders
) -> None:
    """Whoever finds its process takes it for the attempt that is not known to be over."""

    async def scene() -> None:
        child = await launched(runtime, orders("true"))
        await child.wait_ended()
        assert (await seen(runtime, orders("true")))[0] != child.identity.pid
        child.retire()
        assert (await seen(runtime, orders("true")))[0] == child.identity.pid

    play(scene)


def test_a_stop_that_comes_too_late_stops_nobody_else(
    runtime: ProcessRuntime, orders: Orders
) -> None:
    async def scene() -> None:
        child = await launched(runtime, order := orders("true"))
        await until((order.runtime_folder / "exit.json").exists)
        child.stop()
        assert (await child.wait_ended()).clean
        child.retire()
        pid, ending, _ = await seen(runtime, orders("true"))
        assert (pid != child.identity.pid, ending.clean) == (True, True)
        await until(lambda: is_over(child.identity))

    play(scene)


def test_one_that_died_while_it_waited_is_replaced(runtime: ProcessRuntime, orders: Orders) -> None:
    async def scene() -> None:
        child = await done(runtime, orders("true"))
        os.kill(child.identity.pid, signal.SIGKILL)
        await until(lambda: is_over(child.identity))
        second, ending, _ = await seen(runtime, orders("true"))
        assert (child.identity.pid != second, ending.clean) == (True, True)
        assert procfs.stat(child.identity.pid) is None

    play(scene)


def test_one_that_is_asked_to_go_while_it_waits_goes(
    runtime: ProcessRuntime, orders: Orders
) -> None:
    async def scene() -> None:
        child = await done(runtime, orders("true"))
        os.kill(child.identity.pid, signal.SIGTERM)
        await until(lambda: is_over(child.identity))
        assert (await seen(runtime, orders("true")))[1].clean

    play(scene)


def test_those_that_nobody_wants_go_after_a_while(
    runtime: ProcessRuntime, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(init_pool, "KEPT_S", 0.1)

    async def scene() -> None:
        pid, _, _ = await seen(runtime, orders("true"))
        await until(lambda: procfs.stat(pid) is None)

    play(scene)
    play(scene)  # in another loop


def test_no_more_than_a_few_wait(
    runtime: ProcessRuntime, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(init_pool, "MOST", 2)

    async def scene() -> None:
        children = [await launched(runtime, orders("true")) for _ in range(4)]
        for child in children:
            await child.wait_ended()
        for child in children:
            child.retire()
        await until(lambda: sum(not is_over(child.identity) for child in children) == 2)
        assert not any(is_over(child.identity) for child in children[2:])

    play(scene)


def test_who_cannot_be_used_again_has_a_successor_waiting(
    runtime: ProcessRuntime, orders: Orders
) -> None:
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


def test_no_successor_outlives_its_runtime(runtime: ProcessRuntime, orders: Orders) -> None:
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
        child.retire()
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
def test_what_is_mounted_meanwhile_is_seen(tmp_path: Path) -> None:
    """By a steward in a mount namespace of its own, whose changes nobody is told of."""
    paths = [str(SOURCE), str(Path(__file__).parents[1]), str(tmp_path)]
    words = [sys.executable, "-c", SCENE, *paths]
    apart = ["unshare", "--mount", "--propagation", "private", *words]
    said = subprocess.run(apart, capture_output=True, text=True, timeout=BOUND_S)
    assert said.stdout == "True ['2', 'new']\n", said.stderr
