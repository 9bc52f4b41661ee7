"""A steward that is killed while somebody waits: the wait goes on with the next one."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import retinue
from retinue import Brief, StewardUnavailable
from retinue.client.async_client import Remote, connect_steward
from retinue.client.blocking_client import Client
from retinue.client.reconnect import ProgramLink
from retinue.client.repeatable_calls import LOSSES, WITHIN_SECONDS, LossCounter, prepare_repeat
from support.api import create, let_go
from support.api import until as api_until
from support.cli import BOUND_S, CONFIG, Cli, cli
from support.reader import Reader
from support.repositories import plan, step
from support.roots import Root, sh, until
from support.traces import is_over

__all__ = ["cli"]

pytestmark = pytest.mark.timeout(120)

WAITS = "touch ready; until [ -e go ]; do sleep 0.02; done; echo done"
LOOKS = ("subagent.list", "subagent.wait_any", "subagent.wait_all", "run.wait", "look.lanes")
POLL = {"x86_64": "7", "aarch64": "73"}  # aarch64: ppoll
RECEIVE = {"x86_64": "45", "aarch64": "207"}  # recvfrom
ACTS = ("task.create", "subagent.cancel", "subagent.continue", "run.start", "gate.approve", "gc")


def kill_steward(root: Path) -> int:
    pid = int((root / "steward.lock").read_text())
    os.kill(pid, signal.SIGKILL)
    until(lambda: is_over(pid))
    return pid


def is_in_call(pid: int, *calls: dict[str, str], thread: int = 0) -> bool:
    """Whether a client's thread is in one of these system calls."""
    with suppress(OSError):
        number = Path(f"/proc/{pid}/task/{thread or pid}/syscall").read_text().split()[0]
        return number in [each.get(platform.machine()) for each in calls]
    return False


def awaits_answer(pid: int, thread: int = 0) -> bool:
    """Whether a client has sent its request: it polls or reads its socket."""
    return is_in_call(pid, POLL, RECEIVE, thread=thread)


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, err = process.communicate(timeout=BOUND_S)
    assert process.returncode == 0, (out, err)
    return out, err


# -- the command line


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_run_carries_out_the_rest_of_its_plan(cli: Cli, how: str) -> None:
    (cli.folder / "c.yaml").write_text(CONFIG)
    steps = (
        step("first", WAITS, integration="none"),
        step("second", "echo also done", integration="none", depends_on=["first"]),
    )
    (cli.folder / "p.yaml").write_text(plan(*steps, base=None))
    process = cli.start("--json", "run", "--plan", "p.yaml", "--config", "c.yaml")
    (ready,) = until(lambda: list(cli.root.glob("tasks/*/agents/first/workspace/ready")))
    if how == "killed":
        first = kill_steward(cli.root)
    else:
        first = int((cli.root / "steward.lock").read_text())
        cli.run("steward", "stop")
    ready.with_name("go").touch()
    out, err = ended(process)
    document = json.loads(out)
    assert document["status"] == "completed"
    assert [each["answer"] for each in document["results"]] == ["done", "also done"]
    assert "continuing with the next one" in err
    assert int((cli.root / "steward.lock").read_text()) != first
    Reader(cli.root).check(finished=True)


def test_a_run_whose_steward_was_lost_is_still_cancelled_with_its_command(cli: Cli) -> None:
    (cli.folder / "c.yaml").write_text(CONFIG)
    (cli.folder / "p.yaml").write_text(plan(step("slow", WAITS, integration="none"), base=None))
    process = cli.start("run", "--plan", "p.yaml", "--config", "c.yaml")
    until(lambda: list(cli.root.glob("tasks/*/agents/slow/workspace/ready")))
    kill_steward(cli.root)
    assert process.stderr is not None
    assert "continuing with the next one" in process.stderr.readline()
    (task,) = until(lambda: cli.json("task", "list"))
    # It reads without polling once it has the first item: then the steward knows this caller.
    until(lambda: is_in_call(process.pid, RECEIVE))
    process.kill()
    process.communicate(timeout=BOUND_S)
    told = cli.run("timeline", task["task_id"], "--follow")  # until it is closed
    assert "its caller is gone" in told


@pytest.mark.parametrize("verb", ["wait-any", "wait-all"])
def test_a_wait_ends_with_the_first_subagent_that_settles(cli: Cli, verb: str) -> None:
    task = cli.task()
    cli.run("subagent", "spawn", task, "--id", "one", "--", "sh", "-c", WAITS)
    until((cli.workspace(task, "one") / "ready").exists)
    process = cli.start("--json", "subagent", verb, task)
    until(lambda: awaits_answer(process.pid))
    kill_steward(cli.root)
    (cli.workspace(task, "one") / "go").touch()
    out, _ = ended(process)
    document = json.loads(out)
    (settled,) = document if verb == "wait-all" else [document]
    assert (settled["agentInstance"], settled["status"]) == ("one", "completed")


def test_a_spawn_that_waits_has_its_result_and_spawns_once(cli: Cli) -> None:
    task = cli.task()
    process = cli.start("--json", "subagent", "spawn", task, "--wait", "--", "sh", "-c", WAITS)
    (ready,) = until(lambda: list(cli.root.glob("tasks/*/agents/*/workspace/ready")))
    kill_steward(cli.root)
    ready.with_name("go").touch()
    document = json.loads(ended(process)[0])
    assert [each["answer"] for each in document["results"]] == ["done"]
    assert "warnings" not in document
    assert len(cli.json("subagent", "list", task)) == 1


def test_a_continued_one_that_is_awaited_has_its_result(cli: Cli) -> None:
    task = cli.task()
    script = "[ -e again ] || { touch again; echo first; exit; }; " + WAITS
    cli.run("subagent", "spawn", task, "--id", "one", "--wait", "--", "sh", "-c", script)
    process = cli.start("--json", "subagent", "continue", task, "one", "more", "--wait")
    workspace = cli.workspace(task, "one")
    until((workspace / "ready").exists)
    # A steward that answers a later request has said which subagent continues.
    cli.run("subagent", "list", task)
    kill_steward(cli.root)
    (workspace / "go").touch()
    assert json.loads(ended(process)[0])["answer"] == "done"


def test_events_that_are_followed_are_each_shown_once(cli: Cli) -> None:
    task = cli.task()
    cli.run("subagent", "spawn", task, "--id", "one", "--", "sh", "-c", WAITS)
    until((cli.workspace(task, "one") / "ready").exists)
    process = cli.start("--json", "task", "events", task, "--follow")
    assert process.stdout is not None
    first = process.stdout.readline()
    kill_steward(cli.root)
    (cli.workspace(task, "one") / "go").touch()
    cli.run("subagent", "wait-all", task)
    cli.run("task", "close", task)
    numbers = [json.loads(line)["seq"] for line in (first, *process.stdout)]
    assert process.wait(BOUND_S) == 0
    assert numbers == list(range(1, len(numbers) + 1))


# -- Python


def test_a_program_goes_on_waiting(tmp_path: Path) -> None:
    own = tmp_path / ".retinue"

    async def scene() -> None:
        async with retinue.connect(own) as r:
            task = await create(r)
            await task.spawn([Brief("", argv=["sh", "-c", WAITS], id="one", context_paths=[])])
            workspace = (await task.subagents())[0]["workspace"]
            await api_until(lambda: os.path.exists(f"{workspace}/ready"))
            seen: list[str] = []
            calls = [
                asyncio.create_task(task.wait_any(60)),
                asyncio.create_task(task.wait_all()),
                asyncio.create_task(_types(task, seen)),
            ]
            await api_until(lambda: bool(seen))
            kill_steward(own)
            let_go(workspace)
            settled, everyone, _ = await asyncio.gather(*calls)
            assert (settled.id, settled.status) == ("one", "completed")
            assert [each.id for each in everyone] == ["one"]
            assert seen.count("agent.subagent_closed") == 1
            kill_steward(own)  # while nothing is asked
            assert (await task.result("one")).answer == "done"
            made = await r.create_task(title="after a loss")
            assert await made.subagents() == []
            await r.call("steward.stop")

    asyncio.run(asyncio.wait_for(scene(), BOUND_S))


def test_a_batch_that_a_program_awaits_is_run_once(tmp_path: Path) -> None:
    own = tmp_path / ".retinue"

    async def scene() -> None:
        async with retinue.connect(own) as r:
            task = await create(r)
            brief = Brief("", argv=["sh", "-c", WAITS], context_paths=[])
            running = asyncio.create_task(task.run([brief, brief]))
            await api_until(lambda: len([*own.glob("tasks/*/agents/*/workspace/ready")]) == 2)
            kill_steward(own)
            for each in own.glob("tasks/*/agents/*/workspace"):
                let_go(str(each))
            batch = await running
            assert [each.answer for each in batch.results] == ["done", "done"]
            assert len(await task.subagents()) == 2
            await r.call("steward.stop")

    asyncio.run(asyncio.wait_for(scene(), BOUND_S))


async def _types(task: retinue.Task, seen: list[str]) -> None:
    async for event in task.events(follow=True):
        seen.append(event["type"])
        if event["type"] == "agent.subagent_closed":
            return


# -- what is repeated, and how often


@pytest.mark.parametrize("verb", LOOKS)
def test_looking_and_waiting_are_repeated(verb: str) -> None:
    assert prepare_repeat(verb, {"task": "t"}, 5.0) == {"task": "t"}
    assert prepare_repeat(verb, {"timeout_seconds": 30}, 5.0) == {"timeout_seconds": 25.0}
    assert prepare_repeat(verb, {"timeout_seconds": 3}, 5.0) == {"timeout_seconds": 0.0}


@pytest.mark.parametrize("verb", ACTS)
def test_what_may_have_been_done_is_not_repeated(verb: str) -> None:
    assert prepare_repeat(verb, {"task": "t"}, 0.0) is None


def test_a_spawn_is_repeated_where_its_key_finds_it_again() -> None:
    assert prepare_repeat("subagent.spawn", {"tasks": []}, 0.0) is None
    again = prepare_repeat("subagent.spawn", {"tasks": [], "key": "k"}, 0.0)
    assert again == {"tasks": [], "key": "k", "again": True}


def test_losses_far_apart_are_no_reason_to_give_up() -> None:
    losses = LossCounter()
    for number in range(LOSSES * 5):
        losses.add(number * WITHIN_SECONDS / (LOSSES - 1))
    with pytest.raises(StewardUnavailable) as lost:
        for _ in range(LOSSES):
            losses.add(1e9)
    assert lost.value.code == "steward_lost" and "steward.log" in lost.value.hint


@contextmanager
def dying_steward(root: Path) -> Iterator[list[bytes]]:
    """Something that hears one request over each connection, and is gone without an answer."""
    root.mkdir(mode=0o700)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(root / "steward.sock"))
    listener.listen()
    heard: list[bytes] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, connection.makefile("rb") as lines:
                    heard.append(lines.readline())

    serving = threading.Thread(target=serve)
    serving.start()
    try:
        yield heard
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        serving.join()
        listener.close()


def test_a_command_gives_up_when_one_steward_after_the_other_is_lost(tmp_path: Path) -> None:
    notes: list[str] = []
    with dying_steward(tmp_path / ".retinue") as heard:
        client = Client(tmp_path / ".retinue", notes.append, reconnects=True)
        with pytest.raises(StewardUnavailable) as lost:
            client.call("subagent.wait_any", task="t")
        client.close()
    assert lost.value.code == "steward_lost" and "steward.log" in lost.value.hint
    assert len([each for each in heard if each]) == LOSSES
    assert len(notes) == LOSSES - 1


@pytest.mark.parametrize(("verb", "asked"), [("subagent.wait_any", LOSSES), ("task.create", 1)])
def test_a_program_gives_up_when_one_steward_after_the_other_is_lost(
    tmp_path: Path, verb: str, asked: int
) -> None:
    path = tmp_path / ".retinue" / "steward.sock"

    async def reached() -> Remote:
        return await connect_steward(str(path))

    async def whole() -> None:
        link = ProgramLink(reached)
        with pytest.raises(StewardUnavailable) as lost:
            await link.call(verb, task="t")
        assert lost.value.code == "steward_lost"
        link.close()

    with dying_steward(tmp_path / ".retinue") as heard:
        asyncio.run(whole())
    assert len([each for each in heard if each]) == asked


def test_a_client_that_does_not_ask_for_it_starts_no_other_steward(fresh: Root) -> None:
    """Programs that hold a plain connection learn of the loss; a later request is their choice."""
    task = fresh.create_task()
    fresh.spawn(task, sh(WAITS, subagent_id="one"))
    until((fresh.folder(task, "one") / "workspace" / "ready").exists)
    outcome: list[BaseException] = []

    def wait() -> None:
        try:
            fresh.call("subagent.wait_any", task=task)
        except StewardUnavailable as error:
            outcome.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    until(lambda: awaits_answer(os.getpid(), waiting.native_id or 0))
    # A steward that answers this has read the request before; an unread one would be repeated.
    fresh.call("steward.status")
    kill_steward(fresh.path)
    waiting.join(BOUND_S)
    assert len(outcome) == 1
    fresh.release()
