"""What every runtime must do, as tests that its author runs.

    class TestMyRuntime(RuntimeConformance):
        @pytest.fixture
        def runtime(self) -> Runtime:
            return MyRuntime()

A runtime is finished when they pass. Needs pytest, and a POSIX shell where children run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import LaunchFailed
from retinue.core.ids import SubagentId, TaskId
from retinue.core.result import Ending, EndKind
from retinue.ports import Child, LaunchOrder, Runtime

BOUND_S = 30.0
SHORT_MS = 300
STUBBORN = "trap 'echo INT >> heard' INT; trap 'echo TERM >> heard' TERM; echo up; "
STUBBORN += "while :; do sleep 0.02; done"


class _Orders:
    def adapt(self, order: LaunchOrder) -> LaunchOrder:
        """What every order gets besides; for those whose runtime needs it."""
        return order

    def successor(self, runtime: Runtime) -> Runtime:
        """That of a supervisor who comes after the one that held this, which is gone."""
        return runtime

    @pytest.fixture
    def order(self, tmp_path: Path) -> LaunchOrder:
        """An order in two empty folders, which each test gives a command of its own."""
        workspace = tmp_path / "workspace"
        folder = tmp_path / "runtime"
        workspace.mkdir()
        folder.mkdir()
        plain = LaunchOrder(
            task=TaskId("task"),
            subagent=SubagentId("subagent"),
            attempt=1,
            argv=("/bin/true",),
            environment={"PATH": "/usr/bin:/bin", "GIVEN": "yes"},
            workspace=workspace,
            runtime_folder=folder,
            timeout_ms=20_000,
            graces_ms=(SHORT_MS, SHORT_MS),
            output_limit_bytes=10_000,
        )
        return self.adapt(plain)


class _Launching(_Orders):
    def test_it_is_available_or_says_why_not(self, runtime: Runtime) -> None:
        assert runtime.find_unavailable_reason() is None

    def test_nothing_is_run_before_the_release(self, runtime: Runtime, order: LaunchOrder) -> None:
        async def scene() -> None:
            child = await runtime.launch(shell(order, "touch ran; echo ok"))
            assert runtime.adopt(child.identity, order.runtime_folder) is not None
            assert not (order.workspace / "ran").exists()
            await child.release()
            assert (await child.wait_ended()).clean
            assert (order.workspace / "ran").exists()

        play(scene)

    def test_the_command_has_its_environment_and_no_input(
        self, runtime: Runtime, order: LaunchOrder
    ) -> None:
        script = 'echo "$GIVEN" > given; cat > input; echo said; echo told >&2'
        assert run(runtime, shell(order, script)).clean
        assert (read(order, "given"), read(order, "input")) == ("yes\n", "")
        assert (order.runtime_folder / "stdout.log").read_text() == "said\n"
        assert (order.runtime_folder / "stderr.log").read_text() == "told\n"

    @pytest.mark.parametrize("code", [0, 3])
    def test_the_exit_code_is_told(self, runtime: Runtime, order: LaunchOrder, code: int) -> None:
        ending = run(runtime, shell(order, f"exit {code}"))
        assert (ending.kind, ending.exit_code, ending.signal) == (EndKind.EXITED, code, None)

    def test_the_signal_that_ended_it_is_told(self, runtime: Runtime, order: LaunchOrder) -> None:
        ending = run(runtime, shell(order, "kill -SEGV $$"))
        assert (ending.kind, ending.exit_code, ending.signal) == (EndKind.EXITED, None, 11)

    def test_a_command_that_cannot_be_executed_is_refused_with_the_reason(
        self, runtime: Runtime, order: LaunchOrder
    ) -> None:
        async def scene() -> None:
            child = await runtime.launch(replace(order, argv=("/no/such/command",)))
            with pytest.raises(LaunchFailed, match=r"(?i)no such file"):
                await child.release()
            assert (await child.wait_ended()).kind is EndKind.LAUNCH_FAILED

        play(scene)


class _Stopping(_Orders):
    def test_a_stop_asks_before_it_kills(self, runtime: Runtime, order: LaunchOrder) -> None:
        def stop(child: Child) -> None:
            child.stop()
            child.stop()

        ending = run(runtime, shell(order, STUBBORN), act=stop)
        assert ending.kind is EndKind.STOPPED
        assert ending.signals_sent == ("SIGINT", "SIGTERM", "SIGKILL")
        assert read(order, "heard").split() == ["INT", "TERM"]

    def test_one_that_runs_out_of_time_is_stopped(
        self, runtime: Runtime, order: LaunchOrder
    ) -> None:
        ending = run(runtime, shell(order, "exec sleep 60", timeout_ms=SHORT_MS))
        assert ending.kind is EndKind.DEADLINE
        assert ending.signals_sent[0] == "SIGINT"
        assert ending.duration_ms >= SHORT_MS

    @pytest.mark.parametrize("end", ["stop", "kill", "exit"])
    def test_nothing_that_it_started_outlives_it(
        self, runtime: Runtime, order: LaunchOrder, end: str
    ) -> None:
        """The grandchild has a session of its own and holds every pipe open."""
        beats = "while :; do echo . >> beats; echo up; sleep 0.01; done"
        then = "until test -e beats; do sleep 0.01; done" if end == "exit" else "sleep 60"
        run(runtime, shell(order, f"setsid sh -c '{beats}' & {then}"), act=ACTS[end])
        counted = read(order, "beats")

        async def scene() -> None:
            await asyncio.sleep(0.1)
            assert read(order, "beats") == counted

        play(scene)


class _Watching(_Orders):
    def test_its_end_can_be_awaited_by_several_and_again(
        self, runtime: Runtime, order: LaunchOrder
    ) -> None:
        async def scene() -> None:
            child = await runtime.launch(shell(order, "exit 5"))
            await child.release()
            first, second = await asyncio.gather(child.wait_ended(), child.wait_ended())
            assert first == second == await child.wait_ended()
            child.stop()
            child.kill()

        play(scene)

    def test_a_living_one_is_adopted_and_can_be_stopped(
        self, runtime: Runtime, order: LaunchOrder
    ) -> None:
        async def scene() -> None:
            traps = "trap 'exit 6' INT; echo up; while :; do sleep 0.02; done"
            child = await runtime.launch(shell(order, traps))
            await child.release()
            await _until(partial(_says_up, order))
            later = self.successor(runtime)
            adopted = later.adopt(child.identity, order.runtime_folder)
            assert adopted is not None and adopted.identity == child.identity
            adopted.stop()
            ending = await adopted.wait_ended()
            assert (ending.kind, ending.exit_code) == (EndKind.STOPPED, 6)

        play(scene)

    def test_how_one_ended_is_read_from_its_record(
        self, runtime: Runtime, order: LaunchOrder
    ) -> None:
        ending = run(runtime, shell(order, "exit 7", attempt=3))
        assert runtime.read_ending(order.runtime_folder, 3) == ending
        assert runtime.read_ending(order.runtime_folder, 2).kind is EndKind.LOST

    def test_one_without_a_record_is_lost(self, runtime: Runtime, order: LaunchOrder) -> None:
        assert runtime.read_ending(order.runtime_folder, 1).kind is EndKind.LOST

    def test_output_beyond_the_limit_is_cut_and_said_to_be(
        self, runtime: Runtime, order: LaunchOrder
    ) -> None:
        ending = run(runtime, shell(order, "yes | head -c 1000000"))
        assert ending.clean and ending.stdout_cut and not ending.stderr_cut
        size = (order.runtime_folder / "stdout.log").stat().st_size
        assert order.output_limit_bytes <= size < 2 * order.output_limit_bytes


class RuntimeConformance(_Launching, _Stopping, _Watching):
    """A mixin for a test class that has a fixture `runtime`.

    Its children may run on another machine: files of the workspace are read after their end.
    """


class LocalRuntimeConformance(RuntimeConformance):
    """The same, for a runtime whose children work on the disk of their supervisor."""

    def test_the_command_has_the_workspace_that_was_ordered(
        self, runtime: Runtime, order: LaunchOrder
    ) -> None:
        script = "pwd -P > where"
        assert run(runtime, shell(order, script)).clean
        assert read(order, "where") == f"{order.workspace.resolve()}\n"

    def test_a_living_one_is_adopted_and_watched_to_its_end(
        self, runtime: Runtime, order: LaunchOrder
    ) -> None:
        async def scene() -> None:
            waits = "until test -e go; do sleep 0.01; done; exit 6"
            child = await runtime.launch(shell(order, waits))
            await child.release()
            later = self.successor(runtime)
            adopted = later.adopt(child.identity, order.runtime_folder)
            assert adopted is not None and adopted.identity == child.identity
            other = replace(child.identity, start_ticks=child.identity.start_ticks + 1)
            assert later.adopt(other, order.runtime_folder) is None
            elsewhere = replace(child.identity, boot_id="another boot")
            assert later.adopt(elsewhere, order.runtime_folder) is None
            (order.workspace / "go").touch()
            assert (await adopted.wait_ended()).exit_code == 6
            assert later.adopt(child.identity, order.runtime_folder) is None

        play(scene)


ACTS: dict[str, Callable[[Child], None] | None] = {
    "stop": lambda child: child.stop(),
    "kill": lambda child: child.kill(),
    "exit": None,
}


def shell(order: LaunchOrder, script: str, **changes: Any) -> LaunchOrder:
    return replace(order, argv=("sh", "-c", script), **changes)


def read(order: LaunchOrder, name: str) -> str:
    return (order.workspace / name).read_text()


def play(scene: Callable[[], Any]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(BOUND_S):
            await scene()

    asyncio.run(bounded())


def run(runtime: Runtime, order: LaunchOrder, act: Callable[[Child], None] | None = None) -> Ending:
    """How it ended; `act` comes as soon as the command has printed `up`."""

    async def whole() -> Ending:
        async with asyncio.timeout(BOUND_S):
            child = await runtime.launch(order)
            await child.release()
            if act is not None:
                await _until(partial(_says_up, order))
                act(child)
            return await child.wait_ended()

    return asyncio.run(whole())


def _says_up(order: LaunchOrder) -> bool:
    log = order.runtime_folder / "stdout.log"
    return log.exists() and b"up" in log.read_bytes()


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  the file system sets no event of ours
        await asyncio.sleep(0.005)
