"""Real commands under a real init: how they end, what they leave, what cannot outlive them."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from integration.commands import (
    BOUND_S,
    holdings,
    identity_from,
    is_over,
    other_steward,
    processes_with,
    refusal,
    run,
    run_with,
    shell,
    until,
)
from retinue.child.control_protocol import Order
from retinue.core.errors import LaunchFailed
from retinue.core.result import Ending, EndKind
from retinue.core.task_config import Boundary, Limits
from retinue.ports import LaunchOrder
from retinue.runtime.fork_server_client import ForkServer, Init
from retinue.runtime.launch_handshake import NamespacesRefused
from retinue.runtime.process_runtime import ChildProcess, ProcessRuntime
from support.runtimes import needs_namespace


class TestEnds:
    def test_its_output_is_kept_for_its_owner_alone(
        self, runtime: ProcessRuntime, order: LaunchOrder
    ) -> None:
        ending = run(runtime, shell(order, "printf out; printf err >&2; pwd > where; cat"))
        assert ending.clean
        assert not ending.stdout_cut
        assert (order.runtime_folder / "stdout.log").read_bytes() == b"out"
        assert (order.runtime_folder / "stderr.log").read_bytes() == b"err"
        assert (order.workspace / "where").read_text().strip() == str(order.workspace)
        files = {path.name: path.stat().st_mode & 0o777 for path in order.runtime_folder.iterdir()}
        assert files == dict.fromkeys(["stdout.log", "stderr.log", "exit.json"], 0o600)

    def test_output_beyond_the_limit_is_discarded_and_does_not_block(
        self, runtime: ProcessRuntime, order: LaunchOrder
    ) -> None:
        script = "head -c 50000000 /dev/zero | tr '\\0' x; printf 12345 >&2; exit 4"
        ending = run(runtime, shell(order, script, output_limit_bytes=5))
        assert (ending.exit_code, ending.stdout_cut, ending.stderr_cut) == (4, True, False)
        kept = (order.runtime_folder / "stdout.log").read_bytes()
        assert kept == b"xxxxx\n[retinue: output cut at 5 bytes]\n"
        assert (order.runtime_folder / "stderr.log").read_bytes() == b"12345"

    def test_the_record_of_an_earlier_attempt_is_never_taken_for_this_one(
        self, runtime: ProcessRuntime, order: LaunchOrder
    ) -> None:
        assert run(runtime, order).clean
        again = shell(order, "touch up; sleep 60", attempt=2)
        assert run_with(runtime, again, ChildProcess.kill).kind is EndKind.LOST
        assert runtime.read_ending(order.runtime_folder, 1).error == "disappeared without a record"

    def test_a_record_that_cannot_be_written_is_said(
        self, runtime: ProcessRuntime, order: LaunchOrder, kind: str
    ) -> None:
        if kind == "isolated":
            pytest.skip("its runtime folder is out of an isolated command's reach")
        ending = run(runtime, replace(order, argv=("rm", "-r", str(order.runtime_folder))))
        assert ending.kind is EndKind.LOST
        assert ending.error == "its end could not be recorded: ENOENT"

    def test_a_fault_of_init_itself_is_recorded_and_leaves_nothing(
        self, runtime: ProcessRuntime, order: LaunchOrder, marker: str
    ) -> None:
        wrong: Any = ("soon", "later")
        ordered = shell(order, f"touch up; sleep {marker}", graces_ms=wrong)
        ending = run_with(runtime, ordered, ChildProcess.stop)
        assert ending.kind is EndKind.LOST
        assert ending.error.startswith("init failed: TypeError")
        assert "Traceback" in (order.runtime_folder / "init.log").read_text()


class TestLaunch:
    def test_an_isolated_launch_fails_without_namespaces(self, order: LaunchOrder) -> None:
        mounts = Path("/proc/self/mountinfo").read_text()
        isolated = replace(order, boundary=Boundary(mode="isolated"))
        with pytest.raises(LaunchFailed, match="isolation needs namespaces"):
            run(ProcessRuntime(containment="subreaper"), isolated)
        assert Path("/proc/self/mountinfo").read_text() == mounts

    def test_a_launch_without_namespaces_fails_with_the_same_message(
        self, order: LaunchOrder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def start(_: ForkServer, order: Order) -> tuple[Init, bytes]:
            if order.contained:
                raise NamespacesRefused("none here")
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        monkeypatch.setattr(ForkServer, "start", start)
        with pytest.raises(LaunchFailed, match="EMFILE: too many open files"):
            run(ProcessRuntime(), order)

    def test_where_no_child_can_be_tried_isolation_is_missing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        runtime = ProcessRuntime()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
        missing = asyncio.run(runtime.isolation_missing())
        assert missing is not None and "the probe child could not be started" in missing
        assert runtime.isolation is None

    @pytest.mark.parametrize(
        ("argv", "error"),
        [
            (("nope",), "ENOENT: no such file or directory: 'nope'"),
            (("./plain",), "EACCES: permission denied: './plain'"),
            (("/bin/echo", "x" * 3_000_000), "E2BIG: argument list too long: '/bin/echo'"),
            (("/bin/echo", "a\0b"), "EINVAL: embedded null byte: '/bin/echo'"),
        ],
        ids=["missing", "not executable", "too long", "nul"],
    )
    def test_a_command_that_cannot_be_executed_is_refused_with_its_errno(
        self,
        runtime: ProcessRuntime,
        order: LaunchOrder,
        kind: str,
        argv: tuple[str, ...],
        error: str,
    ) -> None:
        (order.workspace / "plain").touch(mode=0o644)
        said, ending = refusal(runtime, replace(order, argv=argv))
        assert said.startswith(error)
        assert ("add --context-path" in said) == (kind == "isolated" and argv == ("nope",))
        assert (ending.kind, ending.error) == (EndKind.LAUNCH_FAILED, said)
        assert ending.hopeless

    def test_a_workspace_that_was_removed_is_named(
        self, runtime: ProcessRuntime, order: LaunchOrder, kind: str
    ) -> None:
        missing = f"ENOENT: no such file or directory: '{order.workspace}'"
        if kind == "isolated":  # once launched, it is bound for the child, whatever we remove
            order.workspace.rmdir()
            with pytest.raises(LaunchFailed, match=missing):
                run(runtime, order)
            return
        said, ending = refusal(runtime, order, before=order.workspace.rmdir)
        assert said == missing
        assert ending.kind is EndKind.LAUNCH_FAILED
        assert not ending.hopeless

    @pytest.mark.parametrize(
        "changes",
        [{"argv": ()}, {"argv": ("\ud800",)}, {"runtime_folder": Path("/nonexistent")}],
        ids=["empty", "unwritable word", "no runtime folder"],
    )
    def test_an_order_that_makes_no_sense_starts_nothing(
        self, runtime: ProcessRuntime, order: LaunchOrder, changes: dict[str, Any]
    ) -> None:
        before = holdings()
        with pytest.raises(LaunchFailed, match=r"EINVAL|ENOENT"):
            asyncio.run(runtime.launch(replace(order, **changes)))
        assert holdings() == before

    def test_the_command_is_looked_for_in_its_own_path(
        self, runtime: ProcessRuntime, order: LaunchOrder, tmp_path: Path, kind: str
    ) -> None:
        if kind == "isolated":
            pytest.skip("an isolated command sees no folder of ours in its path")
        (tmp_path / "bin").mkdir()
        tool = tmp_path / "bin" / "tool"
        tool.write_text("#!/bin/sh\nexit 9\n")
        tool.chmod(0o755)
        path = {"PATH": f"/nonexistent::{tool.parent}"}
        assert run(runtime, replace(order, argv=("tool",), environment=path)).exit_code == 9

    def test_the_command_gets_its_order_and_nothing_of_ours(
        self, runtime: ProcessRuntime, order: LaunchOrder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OUR_SECRET", "hunter2")
        brief, leaked = "x" * 100_000, os.pipe()
        os.set_inheritable(leaked[0], True)
        script = "ls -m /proc/$$/fd; env; grep SigIgn /proc/$$/status; cat /proc/$PPID/environ"
        environment = {**order.environment, "BRIEF": brief, "ODD": "caf\udce9"}
        ordered = shell(order, script, environment=environment, output_limit_bytes=1_000_000)
        assert run(runtime, ordered).kind is EndKind.EXITED
        for end in leaked:
            os.close(end)
        output = (order.runtime_folder / "stdout.log").read_bytes()
        assert output.startswith(b"0, 1, 2\n")
        assert b"BRIEF=" + brief.encode() in output
        assert b"ODD=caf\xe9\n" in output
        ignored = int(output.partition(b"SigIgn:\t")[2][:16], 16)
        assert not ignored & 0x7FFFFFFF  # the C library keeps two above that to itself
        assert b"hunter2" not in output

    @pytest.mark.parametrize("memory_mb", [4096, 100], ids=["ample", "less-than-init-wants"])
    def test_however_it_is_started_it_has_its_limits_its_session_and_its_workspace(
        self, runtime: ProcessRuntime, order: LaunchOrder, memory_mb: int
    ) -> None:
        given = Limits(memory_mb=memory_mb, open_files=200, file_mb=2)
        script = "ulimit -d; ulimit -n; ulimit -f; ulimit -c; cut -d' ' -f1,6 /proc/$$/stat; pwd"
        ordered = shell(order, script, boundary=replace(order.boundary, limits=given))
        assert run(runtime, ordered).exit_code == 0
        said = (order.runtime_folder / "stdout.log").read_text().split("\n")
        assert said[:4] == [str(memory_mb * 1024), "200", "4096", "0"]
        pid, session = said[4].split()
        assert pid == session
        assert said[5] == str(order.workspace.resolve())

    def test_exhausted_descriptors_refuse_the_launch_and_leak_nothing(
        self, runtime: ProcessRuntime, order: LaunchOrder
    ) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

        async def launch_with(spare: int) -> str:
            free = os.dup(0)
            os.close(free)
            before, said = holdings(), "launched"
            resource.setrlimit(resource.RLIMIT_NOFILE, (free + spare, hard))
            try:
                child = await runtime.launch(order)
            except LaunchFailed as refused:
                said = refused.message
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            if said == "launched":
                child.kill()
                await child.wait_ended()
            assert holdings() == before
            return said

        said = [asyncio.run(launch_with(spare)) for spare in range(12)]
        assert said[0].startswith("EMFILE: too many open files")
        assert said[-1] == "launched"
        assert {text.split(":")[0] for text in said} == {"EMFILE", "launched"}

    @pytest.mark.parametrize("steps", [1, 2, 3, 4, 6])
    def test_a_launch_given_up_leaves_nothing(
        self, runtime: ProcessRuntime, order: LaunchOrder, steps: int
    ) -> None:
        async def give_up() -> tuple[object, object]:
            before = holdings()
            task = asyncio.create_task(runtime.launch(order))
            for _ in range(steps):
                await asyncio.sleep(0.003)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                child = await task
                child.kill()  # it was quicker than we were
                await child.wait_ended()
                raise asyncio.CancelledError
            # Whoever came of a launch that was given up is seen off after it, not within it.
            for _ in range(int(BOUND_S * 100)):
                if holdings() == before:
                    break
                await asyncio.sleep(0.01)
            return before, holdings()

        before, after = asyncio.run(give_up())
        assert after == before


class TestStop:
    @pytest.mark.requirement("R42")
    @pytest.mark.parametrize(
        ("trap", "sent"),
        [
            ("trap 'exit 7' INT; touch up", ("SIGINT",)),
            ("trap '' INT; touch up", ("SIGINT", "SIGTERM")),
            ("trap '' INT TERM; touch up", ("SIGINT", "SIGTERM", "SIGKILL")),
            ("touch up; kill -STOP $$", ("SIGINT",)),
            ("trap '' INT TERM; touch up; kill -STOP $$", ("SIGINT", "SIGTERM", "SIGKILL")),
        ],
        ids=["heeds", "ignores one", "ignores both", "stands still", "ignores and stands still"],
    )
    @pytest.mark.parametrize("cause", ["stop", "deadline"])
    def test_the_ladder_climbs_as_far_as_it_must(
        self,
        runtime: ProcessRuntime,
        order: LaunchOrder,
        trap: str,
        sent: tuple[str, ...],
        cause: str,
    ) -> None:
        grace = 300 if len(sent) > 1 else 20_000
        script = f"{trap}; while :; do sleep 0.01; done"
        limit = 20_000 if cause == "stop" else 500
        ordered = shell(order, script, graces_ms=(grace, grace), timeout_ms=limit)

        def act(child: ChildProcess) -> None:
            if cause == "stop":
                child.stop()
                child.stop()

        ending = run_with(runtime, ordered, act)
        assert ending.kind.value == ("stopped" if cause == "stop" else "deadline")
        assert ending.signals_sent == sent
        assert ending.exit_code == (7 if "exit 7" in trap else None)
        assert ending.signal == (None if "exit 7" in trap else getattr(signal, sent[-1]))
        assert (len(sent) - 1) * grace <= ending.duration_ms < 15_000

    def test_stopped_at_the_gate_it_never_executes(
        self, runtime: ProcessRuntime, order: LaunchOrder
    ) -> None:
        async def whole() -> Ending:
            async with asyncio.timeout(BOUND_S):
                child = await runtime.launch(shell(order, "touch ran"))
                child.stop()
                ending = await child.wait_ended()
                with pytest.raises(LaunchFailed, match="stopped by request"):
                    await child.release()
                child.stop()
                child.kill()
                return ending

        assert asyncio.run(whole()) == Ending(kind=EndKind.STOPPED)
        assert not (order.workspace / "ran").exists()

    @pytest.mark.requirement("R111")
    @pytest.mark.parametrize("act", [ChildProcess.stop, ChildProcess.kill])
    def test_daemons_it_started_end_with_it(
        self,
        runtime: ProcessRuntime,
        order: LaunchOrder,
        marker: str,
        act: Callable[[ChildProcess], None],
    ) -> None:
        daemon = f'( setsid sh -c "trap \\"\\" INT TERM; touch up; exec sleep {marker}" & )'
        before: list[int] = []

        def seen_then(child: ChildProcess) -> None:
            while not before:
                before.extend(processes_with(marker))
            act(child)

        ordered = shell(order, f"{daemon}; sleep {marker}", graces_ms=(50, 50))
        ending = run_with(runtime, ordered, seen_then)
        asyncio.run(until(lambda: not processes_with(marker)))
        assert ending.kind is (EndKind.STOPPED if act is ChildProcess.stop else EndKind.LOST)
        assert before

    @pytest.mark.requirement("R111")
    def test_daemons_that_hold_its_output_neither_delay_its_end_nor_outlive_it(
        self, runtime: ProcessRuntime, order: LaunchOrder, marker: str
    ) -> None:
        daemon = f'( setsid sh -c "touch up; exec sleep {marker}" & )'
        ending = run(
            runtime, shell(order, f"{daemon}; while [ ! -e up ]; do :; done; echo said; exit 5")
        )
        assert not processes_with(marker)
        assert (ending.kind, ending.exit_code, ending.signals_sent) == (EndKind.EXITED, 5, ())
        assert (order.runtime_folder / "stdout.log").read_text() == "said\n"

    @needs_namespace
    @pytest.mark.requirement("R111")
    def test_killing_init_from_outside_takes_everything_with_it(
        self, order: LaunchOrder, marker: str
    ) -> None:
        def kill(child: ChildProcess) -> None:
            os.kill(child.identity.pid, signal.SIGKILL)

        script = f'( setsid sh -c "touch up; exec sleep {marker}" & ); sleep {marker}'
        ending = run_with(ProcessRuntime(), shell(order, script), kill)
        assert not processes_with(marker)
        assert ending == Ending(kind=EndKind.LOST, error="killed by SIGKILL from outside")


class TestAdoption:
    @pytest.mark.requirement("R35")
    def test_a_child_outlives_its_steward_and_ends_under_the_next(self, order: LaunchOrder) -> None:
        script = "touch up; while [ ! -e finish ]; do sleep 0.01; done; exit 42"
        identity = identity_from(other_steward(shell(order, script), "release"))
        runtime = ProcessRuntime()
        later = replace(identity, start_ticks=identity.start_ticks + 1)
        rebooted = replace(identity, boot_id="00000000-0000-0000-0000-000000000000")
        assert runtime.adopt(later, order.runtime_folder) is None
        assert runtime.adopt(rebooted, order.runtime_folder) is None

        async def whole() -> Ending:
            async with asyncio.timeout(BOUND_S):
                child = runtime.adopt(identity, order.runtime_folder)
                assert child is not None
                assert child.identity == identity
                await child.release()
                (order.workspace / "finish").touch()
                return await child.wait_ended()

        ending = asyncio.run(whole())
        assert (ending.kind, ending.exit_code) == (EndKind.EXITED, 42)
        assert runtime.adopt(identity, order.runtime_folder) is None
        assert runtime.read_ending(order.runtime_folder, 1) == ending

    def test_an_adopted_child_can_be_stopped(self, order: LaunchOrder) -> None:
        identity = identity_from(other_steward(shell(order, "sleep 1000"), "release"))

        async def whole() -> Ending:
            async with asyncio.timeout(BOUND_S):
                child = ProcessRuntime().adopt(identity, order.runtime_folder)
                assert child is not None
                child.stop()
                return await child.wait_ended()

        assert asyncio.run(whole()).signals_sent == ("SIGINT",)

    def test_a_steward_that_dies_before_it_releases_has_run_nothing(
        self, order: LaunchOrder
    ) -> None:
        identity = identity_from(other_steward(shell(order, "touch ran"), "gate"))
        asyncio.run(until(lambda: is_over(identity)))
        assert ProcessRuntime().read_ending(order.runtime_folder, 1) == Ending(
            kind=EndKind.NEVER_RAN
        )
        assert not (order.workspace / "ran").exists()
