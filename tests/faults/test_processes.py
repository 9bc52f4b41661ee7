"""Children that end badly, stand still or cannot start; and what is left of those that ran."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.core.brief import Brief
from retinue.core.result import Status
from support.repositories import Repository, carry_out, plan, reasons, step
from support.roots import CONFIG, Root, command, held, python, sh, until
from support.scenarios import tell
from support.traces import children_of, holdings, is_over

UNSTARTABLE = ["subagent_created", "subagent_started", "started", "failed", "subagent_attempt"]
UNSTARTABLE += ["subagent_failed", "subagent_closed"]


@pytest.fixture
def marker() -> Iterator[str]:
    """An argument of `sleep` that no other process has; none that has it is left behind."""
    text = f"86398.{os.getpid()}{time.monotonic_ns()}"
    yield text
    assert not processes_with(text)


@pytest.mark.requirement("R51", "R110")
def test_an_exit_without_any_output_is_an_error_and_no_success(root: Root, task: str) -> None:
    (result,) = root.run(task, command("true"))
    assert (result["status"], result["success"], result["answer"]) == ("error", False, None)
    assert result["error"] == "no output"
    assert Path(result["workspace_path"]).is_dir()
    assert root.rows(task)["subagent-1"]["status"] == "failed"
    root.sound()


@pytest.mark.parametrize("name", ["SEGV", "ABRT", "KILL", "USR1"])
def test_a_child_that_dies_of_a_signal_fails_by_its_name(root: Root, task: str, name: str) -> None:
    (result,) = root.run(task, sh(f"kill -{name} $$; sleep 20"))
    assert (result["status"], result["error"]) == ("error", f"killed by SIG{name}")
    (failed,) = [each for each in root.events(task) if each["type"] == "agent.failed"]
    assert failed["payload"]["signal"] is not None
    assert failed["payload"]["reason"] == result["error"]


def test_a_child_out_of_memory_fails_with_that_reason(root: Root, task: str) -> None:
    script = "import resource; resource.setrlimit(resource.RLIMIT_AS, (90 << 20, 90 << 20))\n"
    (result,) = root.run(task, python(script + "bytearray(1 << 30)"))
    assert result["status"] == "error"
    assert result["error"].startswith("exited with code 1")
    assert result["error"].endswith(": MemoryError")


def test_the_last_words_of_a_failing_child_are_in_its_error(root: Root, task: str) -> None:
    noise = "import sys; print('noise\\n' * 300_000 + 'no model\\n', file=sys.stderr); sys.exit(3)"
    endless = "import sys; print('x' * 3_000_000 + chr(27) + '[2J', file=sys.stderr); sys.exit(4)"
    said, lengthy = root.run(task, python(noise), python(endless))
    assert said["error"] == "exited with code 3: no model"
    assert lengthy["error"].startswith("exited with code 4: ")
    assert len(lengthy["error"]) < 300
    assert "\x1b" not in lengthy["error"]


@pytest.mark.requirement("R11", "R12", "R13")
def test_a_child_that_stands_still_is_ended_by_its_deadline(
    root: Root, task: str, marker: str
) -> None:
    before = time.monotonic()
    script = f"sleep {marker} & kill -STOP $! $$; sleep {marker}"
    (result,) = root.run(task, sh(script, timeout_seconds=0.7))
    assert result["status"] == "timeout"
    assert 0.6 < time.monotonic() - before < 5
    assert result["workspace_path"]


def test_a_child_that_ignores_every_polite_signal_is_killed(
    root: Root, task: str, marker: str
) -> None:
    script = f"trap '' INT TERM HUP; setsid sleep {marker} & while :; do sleep 0.05; done"
    (result,) = root.run(task, sh(script, timeout_seconds=0.3))
    assert result["status"] == "timeout"
    (failed,) = [each for each in root.events(task) if each["type"] == "agent.failed"]
    assert failed["payload"]["ended"] == "deadline"


def test_children_outlive_the_connection_and_the_thread_that_spawned_them(
    root: Root, task: str
) -> None:
    def spawn() -> None:
        client = root.client()
        brief = sh("sleep 1; echo alive", subagent_id=threading.current_thread().name)
        client.call("subagent.spawn", task=task, tasks=[brief])
        client.close()

    names = ["first", "second", "third"]
    threads = [threading.Thread(target=spawn, name=name) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    root.call("subagent.wait_all", task=task, timeout_seconds=10)
    answers = [root.call("subagent.result", task=task, subagent=name)["answer"] for name in names]
    assert answers == ["alive"] * 3


def test_children_outlive_the_thread_that_held_the_root(tmp_path: Path) -> None:
    async def spawn() -> str:
        async with retinue.open(tmp_path / ".retinue") as held:
            task = await held.create_task(title="t", config=CONFIG.format(limit=3))
            argv = ["sh", "-c", "sleep 1; echo alive"]
            await task.spawn([Brief(argv=argv, id="lasting", retries=0)])
            return task.id

    async def collect(task: str) -> retinue.Result:
        async with retinue.open(tmp_path / ".retinue") as held:
            assert (await held.task(task).wait_any(10)).id == "lasting"
            return await held.task(task).result("lasting")

    spawned: list[str] = []
    thread = threading.Thread(target=lambda: spawned.append(asyncio.run(spawn())))
    thread.start()
    thread.join(20)
    result = asyncio.run(collect(spawned[0]))
    assert (result.status, result.answer) == (Status.COMPLETED, "alive")


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["/no/such/program"], "ENOENT"),
        (["no-such-program-anywhere"], "ENOENT"),
        (["/etc/passwd"], "EACCES"),
        (["/"], "EACCES"),
        (["echo", "x" * 3_000_000], "E2BIG"),
        (["echo", *["x" * 100_000] * 30], "E2BIG"),
    ],
    ids=["missing", "not-found", "no-program", "a-folder", "one-long-word", "many-words"],
)
def test_what_cannot_be_executed_is_created_failed_and_closed(
    root: Root, task: str, argv: list[str], reason: str
) -> None:
    root.run(root.create_task(), command("true"))
    idle = children_of(root.pid)
    (result,) = root.run(task, command(*argv))
    assert result["status"] == "error"
    assert result["error"].startswith(reason)
    assert root.types(task, "subagent-1") == UNSTARTABLE
    assert root.events(task)[-1]["payload"]["close_reason"] == "execution_failed"
    assert set(children_of(root.pid)) <= set(idle)
    root.sound()


@pytest.mark.parametrize("mode", ["isolated", "inherited"])
@pytest.mark.parametrize("line", ["#!/no/such/python3 -u", "#! /no/such/python3"])
def test_a_script_whose_interpreter_is_not_there_is_not_called_missing(
    root: Root, mode: str, line: str
) -> None:
    script = root.path.parent / f"script-{mode}"
    script.write_text(f"{line}\nprint()\n")
    script.chmod(0o755)
    config = CONFIG.format(limit=1).replace("inherited", mode)
    task = root.call("task.create", title="t", config_text=config)["task_id"]
    (result,) = root.run(task, command(str(script)) | {"context_paths": [str(script)]})
    said = f"no such file or directory: '/no/such/python3', which is to run '{script}'"
    assert result["error"].startswith(f"ENOENT: {said}")


def test_a_child_whose_workspace_is_gone_cannot_start_and_is_closed(root: Root, task: str) -> None:
    (result,) = root.run(task, sh("rmdir $PWD; exit 1", max_retries=1))
    assert result["status"] == "error"
    assert result["error"].startswith("ENOENT")
    assert root.types(task, "subagent-1").count("subagent_attempt") == 2
    assert root.rows(task)["subagent-1"]["state"] == "closed"
    root.sound()


def test_a_spawn_from_a_folder_that_is_gone_is_refused(root: Root, task: str) -> None:
    before = root.state()
    gone = str(root.path.parent / "gone")
    refused = root.refusal("subagent.spawn", task=task, tasks=[command("true")], cwd=gone)
    assert refused.code == "invalid_request"
    assert root.state() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can lose what root can do")
def test_root_without_any_capability_runs_a_child_or_says_why_not(tmp_path: Path) -> None:
    nothing = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    result = tell("one", tmp_path, *nothing, bound_s=6)
    assert result["answer"] == "ok" or result["error"]


def test_three_hundred_children_leave_no_descriptor_thread_or_zombie(tmp_path: Path) -> None:
    async def whole() -> tuple[Any, Any]:
        async with retinue.open(tmp_path / ".retinue") as held:
            task = await held.create_task(title="t", config=CONFIG.format(limit=3))
            await task.run([Brief(argv=["echo", "ok"])] * 3)
            before = holdings(os.getpid())
            for _ in range(100):
                batch = await task.run([Brief(argv=["echo", "ok"])] * 3)
                assert batch.success
            return before, holdings(os.getpid())

    before, after = asyncio.run(whole())
    assert all(abs(now - then) <= 2 for then, now in zip(before, after, strict=True)), (
        before,
        after,
    )


UNUSUAL = """
import os, signal, sys
for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, set(range(1, 32)))
os.closerange(0, 3)
os.execv(sys.executable, [sys.executable, "-m", "retinue", *sys.argv[1:]])
"""


def test_a_steward_does_not_depend_on_the_program_that_started_it(tmp_path: Path) -> None:
    """Here by a program without streams that ignores some signals and blocks all others."""
    repository = Repository(tmp_path / "project")
    words = ["--root", ".retinue", "task", "create", "--title", "t"]
    odd = [sys.executable, "-c", UNUSUAL, *words]
    assert subprocess.run(odd, cwd=repository.path, timeout=30).returncode == 0
    with held(repository.path / ".retinue") as started:
        end = carry_out(started, plan(step("one", "echo 1 > one; echo x")))
        assert reasons(end) == {"one": "merged"}
        os.kill(pid := started.pid, signal.SIGTERM)
        until(lambda: is_over(pid))


def processes_with(marker: str) -> list[int]:
    """Who has the marker among its arguments, zombies left out."""
    return [pid for pid, words in _all("cmdline") if marker.encode() in words.split(b"\0")]


def _all(name: str) -> Iterator[tuple[int, bytes]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                yield int(folder.name), (folder / name).read_bytes()
            except OSError:
                continue
