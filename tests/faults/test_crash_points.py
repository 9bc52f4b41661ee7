"""The steward dies at each named point of a subagent's way: the next one goes on from there."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from ruamel.yaml import YAML

from retinue.core.errors import StewardUnavailable
from retinue.settings import read_settings
from retinue.steward.app import open_app
from retinue.steward.verbs.params import Params
from retinue.steward.verbs.subagent_verbs import spawn_subagents
from support.reader import Reader
from support.roots import Root, python, sh, until
from support.traces import is_over, processes_that_mention

# The point, and which attempt comes to run the command: an attempt that was recorded and never
# released has run nothing, and the next one takes its place.
POINTS = {
    "created": 1,
    "committed:2": 1,  # its creation is in the database, and not yet in the log
    "exported:2": 1,
    "workspace_made": 1,
    "launched": 1,
    "committed:3": 2,  # its start
    "exported:3": 2,
    "recorded:1": 2,
    "running": 2,
    "released": 1,
    "exited": 1,
    "published": 1,
    "committed:4": 1,  # its end
    "exported:4": 1,
    "recorded:2": 1,
}


class Doomed:
    """One call to spawn, against stewards that are armed to die."""

    def __init__(self, root: Root, patch: pytest.MonkeyPatch, brief: dict[str, Any]) -> None:
        self.root = root
        self.patch = patch
        self.brief = brief
        self.task = ""

    def dies_at(self, point: str) -> bool:
        """Whether a steward came to that point on the way to the subagent's end."""
        self.patch.setenv("RETINUE_FAILPOINT", point)
        try:
            self.finish()
        except StewardUnavailable:
            self.root.release()
            steward = int((self.root.path / "steward.lock").read_text())
            until(lambda: is_over(steward))
            return True
        finally:
            self.patch.delenv("RETINUE_FAILPOINT")
        self.root.stop()
        return False

    def finish(self) -> str:
        """The same call, however often it was made; the one subagent is at its end."""
        self.task = self.task or self.root.create_task()
        # One request from the spawn to the end: between two, the next steward could answer.
        call = {"task": self.task, "tasks": [self.brief], "key": "one", "wait": True}
        batch = self.root.call("subagent.spawn", **call)
        self.root.call("subagent.wait_all", task=self.task, timeout_seconds=20)
        (result,) = batch["results"]
        return str(result["subagent_id"])

    def ran(self, name: str) -> int:
        ran = self.root.folder(self.task, name) / "workspace" / "ran"
        return len(ran.read_text().splitlines())


def shown(root: Root, task: str) -> tuple[int, str]:
    """Up to which event the task's files tell, and what they call the state of its one subagent."""
    folder = root.task_folder(task)
    status = json.loads((folder / "status.json").read_text())
    roster = YAML(typ="safe").load(folder / "task.yaml")["roster"]
    return status["last_seq"], roster[0]["state"] if roster else ""


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.requirement("R106", "R107", "R112", "R132")
def test_after_a_crash_at_a_point_the_command_has_run_once(
    fresh: Root, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    doomed = Doomed(fresh, monkeypatch, sh("echo >> ran; echo done", subagent_id="one"))
    reader = Reader(fresh.path)
    assert doomed.dies_at(point)
    reader.check(finished=False)
    assert doomed.finish() == "one"
    reader.check(finished=True)
    fresh.sound()
    assert doomed.ran("one") == 1
    (row,) = reader.subagents(doomed.task).values()
    assert (row["attempt"], row["close_reason"]) == (POINTS[point], "accepted")
    assert processes_that_mention(doomed.task) == {}
    until(lambda: shown(fresh, doomed.task) == (fresh.events(doomed.task)[-1]["seq"], "completed"))


def test_what_a_killed_steward_had_not_shown_is_shown_whatever_comes_first(
    fresh: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    doomed = Doomed(fresh, monkeypatch, sh("echo done", subagent_id="one"))
    assert doomed.dies_at("committed:4")

    async def go_on() -> None:
        app = open_app(read_settings(fresh.path, {}), print)
        try:
            other = {"task": doomed.task, "tasks": [sh("echo done")], "wait": True}
            await spawn_subagents(app, Params(other))
        finally:
            await app.close()

    asyncio.run(go_on())
    assert shown(fresh, doomed.task) == (fresh.events(doomed.task)[-1]["seq"], "completed")


@pytest.mark.parametrize("point", ["workspace_made", "running", "exited", "published", "recorded"])
def test_a_crash_during_recovery_is_recovered_from_too(
    fresh: Root, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    brief = sh("echo >> ran; echo tried; exit 4", subagent_id="one", max_retries=1)
    doomed = Doomed(fresh, monkeypatch, brief)
    reader = Reader(fresh.path)
    for _ in range(2):
        doomed.dies_at(point)
        reader.check(finished=False)
    doomed.finish()
    reader.check(finished=True)
    fresh.sound()
    assert doomed.ran("one") == 2
    assert fresh.rows(doomed.task)["one"]["status"] == "failed"


@pytest.mark.requirement("R233")
def test_what_a_crash_made_the_steward_say_twice_is_written_once(
    fresh: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    doomed = Doomed(fresh, monkeypatch, sh("echo done", subagent_id="one"))
    assert doomed.dies_at("published")
    doomed.finish()
    lines = (fresh.folder(doomed.task, "one") / "conversation.jsonl").read_text().splitlines()
    assert len(lines) == 2


def test_an_attempt_that_was_being_set_aside_is_not_taken_for_the_next(
    fresh: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = '[ -e again ] && exit 5; touch again; echo early | tee "$RETINUE_LOGS/note"; exit 4'
    doomed = Doomed(fresh, monkeypatch, sh(script, subagent_id="one", max_retries=1))
    assert doomed.dies_at("recorded:2")  # the first attempt's end
    agent = fresh.folder(doomed.task, "one")
    (agent / "runtime" / "attempts" / ".1").mkdir(parents=True)
    (agent / "runtime/stdout.log").rename(agent / "runtime/attempts/.1/stdout.log")
    doomed.finish()
    kept = agent / "runtime" / "attempts" / "1"
    assert (kept / "full_logs" / "note").read_text() == "early\n"
    assert (kept / "stdout.log").read_text() == "early\n"
    assert not (agent / "full_logs" / "note").exists()
    assert (agent / "runtime" / "stdout.log").read_text() == ""


def test_waiting_subagents_start_in_their_order_after_a_crash(
    fresh: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETINUE_FAILPOINT", "created")
    task = fresh.create_task(limit=1)
    briefs = [sh("date +%s%N > started; echo", subagent_id=f"n{n}") for n in range(3)]
    with pytest.raises(StewardUnavailable):
        fresh.spawn(task, *briefs, queue=True)
    monkeypatch.delenv("RETINUE_FAILPOINT")
    fresh.release()
    fresh.call("subagent.wait_all", task=task, timeout_seconds=20)
    Reader(fresh.path).check(finished=True)
    started = [(fresh.folder(task, f"n{n}") / "workspace/started").read_text() for n in range(3)]
    assert started == sorted(started)


def test_a_task_whose_creation_was_cut_off_is_there_or_never_was(
    fresh: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETINUE_FAILPOINT", "committed:2")
    fresh.create_task(task_id="first")
    with pytest.raises(StewardUnavailable):
        fresh.create_task(task_id="second")
    monkeypatch.delenv("RETINUE_FAILPOINT")
    fresh.release()
    leftover = fresh.path / "tasks" / "third"  # made, and its steward killed before its row was
    (leftover / "agents").mkdir(parents=True)
    (leftover / "task.yaml").write_text("id: third\n")
    listed = {each["task_id"] for each in fresh.call("task.list")}
    assert listed == {"first", "second"}
    Reader(fresh.path).check(finished=True)
    assert fresh.create_task(task_id="third") == "third"


@pytest.mark.requirement("R43", "R53")
def test_a_cancelled_subagent_without_a_process_is_not_started_again(
    fresh: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETINUE_FAILPOINT", "exited")
    task = fresh.create_task()
    fresh.spawn(task, sh("touch ran; exec sleep 30", subagent_id="one"))
    until((fresh.folder(task, "one") / "workspace" / "ran").exists)
    with pytest.raises(StewardUnavailable):
        fresh.call("subagent.cancel", task=task, subagent="one", reason="enough")
    monkeypatch.delenv("RETINUE_FAILPOINT")
    fresh.release()
    fresh.call("subagent.wait_all", task=task, timeout_seconds=20)
    Reader(fresh.path).check(finished=True)
    row = fresh.rows(task)["one"]
    assert (row["status"], row["close_reason"], row["attempt"]) == (
        "cancelled",
        "cancelled_by_user",
        1,
    )


@pytest.mark.parametrize("limit", [2, 1], ids=["running", "waiting"])
def test_a_subagent_of_a_subagent_ends_with_it_though_the_steward_dies_between(
    fresh: Root, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    below = {"argv": ["sleep", "60"], "context_paths": [], "subagent_id": "below"}
    ask = f"""
import json, os, socket
link = socket.socket(socket.AF_UNIX)
link.connect(os.environ["RETINUE_STEWARD"])
params = {{"task": os.environ["RETINUE_TASK_ID"], "tasks": [{below!r}]}}
request = {{"v": 1, "id": 1, "verb": "subagent.spawn", "params": params}}
link.sendall(json.dumps(request).encode() + b"\\n")
print(link.makefile().readline())
"""
    monkeypatch.setenv("RETINUE_FAILPOINT", f"recorded:{limit + 1}")  # the end of the one above
    task = fresh.create_task(limit=limit, more="    subagent_admission: queue\n")
    with pytest.raises(StewardUnavailable):
        fresh.run(task, python(ask, subagent_id="above", max_delegation_depth=1))
    monkeypatch.delenv("RETINUE_FAILPOINT")
    fresh.release()
    fresh.call("subagent.wait_all", task=task, timeout_seconds=10)
    rows = fresh.rows(task)
    assert rows["above"]["close_reason"] == "accepted"
    assert rows["below"]["close_reason"] == "cancelled_by_parent"
    assert fresh.types(task, "below").count("started") == limit - 1, "nobody is begun to be ended"
    Reader(fresh.path).check(finished=True)
