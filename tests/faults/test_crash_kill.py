"""kill -9 of the steward at any moment: nothing is lost, doubled, changed or left running."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from typing import Any

import pytest

from retinue.core.errors import RetinueError, StewardUnavailable
from support.reader import Reader
from support.roots import Root, holder, rounds, sh, until
from support.traces import is_over, processes_that_mention

IDS = ("finishes", "hangs", "fails")
WITHIN_S = 0.4  # of the call to spawn, by when the slowest of the three is about to end


def briefs(chance: random.Random) -> list[dict[str, Any]]:
    """Three children: one delivers, one hangs with its answer written, one fails and is retried."""
    pause = chance.choice((0.0, 0.02, 0.1, 0.2))
    return [
        sh(f"echo >> ran; sleep {pause}; echo delivered", subagent_id="finishes"),
        sh(
            'echo found > "$RETINUE_ANSWER"; sleep 30 & setsid sleep 30',
            subagent_id="hangs",
            timeout_seconds=0.25,
        ),
        sh(f"echo >> ran; sleep {pause / 2}; exit 3", subagent_id="fails", max_retries=1),
    ]


class Round:
    """One task that is under way when its steward is killed."""

    def __init__(self, root: Root, number: int) -> None:
        self.root = root
        self.chance = random.Random(number)
        self.briefs = briefs(self.chance)
        self.queue = False
        self.within_s = WITHIN_S
        self.task = root.create_task(limit=3, more="    subagent_max_timeout: 20\n")
        self.acknowledged: dict[str, Any] = {}

    def call(self) -> None:
        """A parent that spawns and takes result after result, until its steward is gone."""
        try:
            client = self.root.client()
            asked = {"tasks": self.briefs, "key": "one", "queue": self.queue}
            client.call("subagent.spawn", task=self.task, **asked)
            for _ in IDS:
                settled = client.call("subagent.wait_any", task=self.task, timeout_seconds=10)
                name = settled["agentInstance"]
                result = client.call("subagent.result", task=self.task, subagent=name)
                self.acknowledged[name] = result
        except (StewardUnavailable, OSError, ValueError):
            pass  # killed in the middle of it

    def kill(self) -> None:
        steward = holder(self.root.path)
        assert steward is not None
        parent = threading.Thread(target=self.call)
        parent.start()
        time.sleep(self.chance.uniform(0, self.within_s))
        os.kill(steward, signal.SIGKILL)
        until(lambda: is_over(steward))
        parent.join(20)
        assert not parent.is_alive()
        self.root.release()

    def recover(self) -> None:
        """The same call again finds the same children; all come to their end."""
        ids = self.root.spawn(self.task, *self.briefs, key="one")
        assert ids == list(IDS)
        settled = self.root.call("subagent.wait_all", task=self.task, timeout_seconds=20)
        assert [each["agentInstance"] for each in settled] == list(IDS)

    def check(self, reader: Reader) -> None:
        reader.check(finished=True, only=[self.task])
        assert processes_that_mention(self.task) == {}
        results = {name: json.loads(text) for name, text in reader.results(self.task).items()}
        for name, result in self.acknowledged.items():
            assert results[name] == result
        statuses = {name: result["status"] for name, result in results.items()}
        expected = {"finishes": "completed", "hangs": "completed_but_timeout", "fails": "error"}
        assert statuses == expected
        assert results["hangs"]["answer"] == "found"
        assert self.runs("finishes") == 1
        assert self.runs("fails") == 2

    def runs(self, name: str) -> int:
        path = self.root.folder(self.task, name) / "workspace" / "ran"
        return len(path.read_text().splitlines())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.requirement("R1", "R111", "R112", "R124")
@pytest.mark.parametrize("half", [0, 1])
def test_a_steward_killed_at_any_moment_loses_nothing(fresh: Root, half: int) -> None:
    reader = Reader(fresh.path)
    for number in range(half, rounds(40), 2):
        one = Round(fresh, number)
        try:
            one.kill()
            one.recover()
            one.check(reader)
        except (AssertionError, RetinueError) as error:
            raise AssertionError(f"round {number}, task {one.task}: {error}") from error
    reader.check(finished=True)
    fresh.sound()
    fresh.stop()
    until(lambda: not processes_that_mention(str(fresh.path)))


@pytest.mark.slow
@pytest.mark.requirement("R1", "R111", "R112")
def test_subagents_that_share_a_pool_are_not_mistaken_for_each_other(fresh: Root) -> None:
    """Many short commands share a few first processes, in the middle of which the steward dies."""
    names = [f"n{number}" for number in range(24)]
    briefs = [sh("echo >> ran; echo $RETINUE_SUBAGENT_ID", subagent_id=name) for name in names]
    reader = Reader(fresh.path)
    for number in range(rounds(12)):
        one = Round(fresh, number)
        one.briefs, one.within_s, one.queue = briefs, 0.15, True
        one.kill()
        fresh.spawn(one.task, *briefs, key="one", queue=True)
        fresh.call("subagent.wait_all", task=one.task, timeout_seconds=20)
        reader.check(finished=True, only=[one.task])
        found = {name: json.loads(text) for name, text in reader.results(one.task).items()}
        assert {name: found[name]["answer"] for name in names} == {name: name for name in names}
        assert {name: one.runs(name) for name in names} == dict.fromkeys(names, 1)


def test_the_next_command_after_a_kill_finds_a_new_steward(fresh: Root) -> None:
    task = fresh.create_task()
    first = fresh.pid
    fresh.kill()
    assert fresh.pid != first
    assert [each["task_id"] for each in fresh.call("task.list")] == [task]


def test_a_repeated_spawn_does_not_wait_for_the_end_of_an_adopted_child(root: Root) -> None:
    task = root.create_task()
    works = sh("sleep 30", subagent_id="works", timeout_seconds=4)
    root.spawn(task, works, key="one")
    steward = root.pid
    os.kill(steward, signal.SIGKILL)
    until(lambda: is_over(steward))
    root.release()
    root.spawn(task, works, key="one")
    assert root.rows(task)["works"]["status"] == "running"
    root.call("subagent.cancel", task=task, subagent="works")
