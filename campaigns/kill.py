"""kill -9 of the steward at random moments under mixed work."""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import threading
import time
from collections.abc import Sequence
from typing import Any

from campaign import Campaign, Order, Row
from retinue.core.errors import RetinueError, StewardUnavailable
from support.reader import Reader
from support.repositories import Repository, plan, step
from support.roots import CONFIG, Root, held, holder, sh, until
from support.traces import is_over, processes_that_mention

WITHIN_SECONDS = 0.6  # of the first call, by when most work has ended
LOST = (StewardUnavailable, OSError, ValueError)  # what a caller sees of a killed steward
ASKS = """
[ -e asked ] && { tail -n 1 "$RETINUE_BRIEF"; exit; }
touch asked; echo '{"status": "blocked", "questions": ["which colour?"]}' > "$RETINUE_FINAL"
"""


class Work:
    """Work of one task. `begin` runs while the steward is killed, `finish` after it."""

    def __init__(self, root: Root, chance: random.Random) -> None:
        self.root = root
        self.chance = chance
        self.task = ""
        self.acknowledged: dict[str, Any] = {}  # results that a caller received

    def begin(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        raise NotImplementedError

    def check(self, reader: Reader) -> None:
        """Raise AssertionError for each promise that does not hold."""
        if not self.task:
            return  # the steward was killed before the task existed
        reader.check(finished=True, only=[self.task])
        left = processes_that_mention(self.task)
        assert left == {}, f"processes are left: {left}"
        results = {name: json.loads(text) for name, text in reader.results(self.task).items()}
        for name, known in self.acknowledged.items():
            assert results[name] == known, f"the acknowledged result of {name} changed"
        self.check_results(results)

    def check_results(self, results: dict[str, Any]) -> None:
        raise NotImplementedError

    def take_results(self, names: Sequence[str]) -> None:
        """Receive one result after the other, until all came or the steward is gone."""
        client = self.root.client()
        for _ in names:
            settled = client.call("subagent.wait_any", task=self.task, timeout_seconds=20)
            name = settled["agentInstance"]
            result = client.call("subagent.result", task=self.task, subagent=name)
            if result["status"] != "blocked":  # it changes with the answer
                self.acknowledged[name] = result

    def count_runs(self, name: str) -> int:
        path = self.root.folder(self.task, name) / "workspace" / "ran"
        return len(path.read_text().splitlines()) if path.exists() else 0


class Commands(Work):
    """One delivers, one hangs with its answer written, one fails and is retried."""

    def begin(self) -> None:
        pause = self.chance.choice((0.0, 0.02, 0.1, 0.2))
        hangs = 'echo found > "$RETINUE_ANSWER"; sleep 30 & setsid sleep 30'
        self.briefs = [
            sh(f"echo >> ran; sleep {pause}; echo delivered", subagent_id="finishes"),
            sh(hangs, subagent_id="hangs", timeout_seconds=0.25),
            sh(f"echo >> ran; sleep {pause / 2}; exit 3", subagent_id="fails", max_retries=1),
        ]
        self.task = self.root.create_task(limit=3)
        self.root.spawn(self.task, *self.briefs, key="one")
        self.take_results([brief["subagent_id"] for brief in self.briefs])

    def finish(self) -> None:
        if self.task:
            self.root.spawn(self.task, *self.briefs, key="one")
            self.root.call("subagent.wait_all", task=self.task, timeout_seconds=30)

    def check_results(self, results: dict[str, Any]) -> None:
        found = {name: result["status"] for name, result in results.items()}
        expected = {"finishes": "completed", "hangs": "completed_but_timeout", "fails": "error"}
        assert found == expected, found
        runs = (self.count_runs("finishes"), self.count_runs("fails"))
        assert runs == (1, 2), f"commands ran {runs} times"


class Queue(Work):
    """Short commands of which most wait for a slot."""

    def begin(self) -> None:
        names = [f"n{number}" for number in range(8)]
        self.briefs = [
            sh("echo >> ran; echo $RETINUE_SUBAGENT_ID", subagent_id=name) for name in names
        ]
        self.task = self.root.create_task(limit=2)
        self.root.spawn(self.task, *self.briefs, key="one", queue=True)
        self.take_results(names)

    def finish(self) -> None:
        if self.task:
            self.root.spawn(self.task, *self.briefs, key="one", queue=True)
            self.root.call("subagent.wait_all", task=self.task, timeout_seconds=30)

    def check_results(self, results: dict[str, Any]) -> None:
        assert {name: result["answer"] for name, result in results.items()} == {
            name: name for name in results
        }
        assert len(results) == len(self.briefs)
        runs = [self.count_runs(name) for name in results]
        assert set(runs) == {1}, f"commands ran {runs} times"


class Gate(Work):
    """A subagent that asks, and is answered."""

    answered = False

    def begin(self) -> None:
        self.task = self.root.create_task()
        self.root.spawn(self.task, sh(ASKS, subagent_id="asks"), key="one")
        self.root.call("subagent.wait_any", task=self.task, timeout_seconds=20)
        self.root.call("subagent.continue", task=self.task, subagent="asks", message="green")
        self.answered = True
        self.take_results(["asks"])

    def finish(self) -> None:
        if not self.task:
            return
        self.root.spawn(self.task, sh(ASKS, subagent_id="asks"), key="one")
        self.root.call("subagent.wait_all", task=self.task, timeout_seconds=30)
        if self.root.rows(self.task)["asks"]["status"] == "blocked":
            assert not self.answered, "an acknowledged answer is lost"
            self.root.call("subagent.continue", task=self.task, subagent="asks", message="green")
            self.root.call("subagent.wait_all", task=self.task, timeout_seconds=30)

    def check_results(self, results: dict[str, Any]) -> None:
        assert (results["asks"]["status"], results["asks"]["answer"]) == ("completed", "green")


class Plan(Work):
    """A plan of three steps, merged in order."""

    repository: Repository
    branch = ""
    before: set[str] | None = None  # tasks that existed; None if the steward died before that

    def begin(self) -> None:
        self.before = {each["task_id"] for each in self.root.call("task.list")}
        text = plan(
            step("one", "echo 1 > one; echo x", owns=["one"]),
            step("two", "echo 2 > two; echo x", owns=["two"]),
            step("three", "cat one two > three; echo x", owns=["three"], depends_on=["one", "two"]),
        )
        started = self.root.call("run.start", plan_text=text, config_text=CONFIG.format(limit=3))
        self.task = started["task_id"]
        self.root.call("run.wait", task=self.task)

    def finish(self) -> None:
        acknowledged = bool(self.task)
        # The answer to run.start was lost; the run may exist.
        if not acknowledged and self.before is not None:
            now = {each["task_id"] for each in self.root.call("task.list")}
            self.task = next(iter(now - self.before), "")
        if not self.task:
            return
        end = self.root.call("run.wait", task=self.task)
        # A run that was not acknowledged may have been given up before its plan was recorded.
        if acknowledged or end["results"] or end["status"] != "failed":
            assert end["status"] == "completed", end
            self.branch = end["branch"]

    def check_results(self, results: dict[str, Any]) -> None:
        if not self.branch:
            assert not results
            return
        joined = self.repository.joined(self.branch)
        assert joined == ["one", "two", "three"], f"merged: {joined}"
        assert self.repository.files(self.branch)["three"] == "1\n2"


KINDS: dict[str, type[Work]] = {
    "commands": Commands,
    "queued commands": Queue,
    "question and answer": Gate,
    "plan with merges": Plan,
}


def run(order: Order) -> list[Row]:
    rows = {name: Row(case=name) for name in KINDS}
    recovered: list[float] = []
    repository = Repository(order.folder / "project")
    Plan.repository = repository
    untouched = repository.untouched()
    whole = Row(case="the root at the end")
    with held(repository.path / ".retinue") as root:
        reader = Reader(root.path)
        for number in order.iter_rounds():
            chance = random.Random(f"{order.seed}:{number}")
            name = chance.choice(list(KINDS))
            row = rows[name]
            row.tried += 1
            work = KINDS[name](root, chance)
            try:
                recovered.append(_kill_during(work))
                work.finish()
                work.check(reader)
            except (AssertionError, RetinueError, KeyError, FileNotFoundError) as error:
                row.violations.append(f"round {number}, {work.task}: {str(error)[:500]}")
        whole.tried = 1
        try:
            reader.check(finished=True)
            root.sound()
        except (AssertionError, RetinueError) as error:
            whole.violations.append(str(error)[:500])
        if repository.untouched() != untouched:
            whole.violations.append("the user's tree, index or branches were changed")
        root.stop()
    left = processes_that_mention(str(root.path))
    if left:
        whole.violations.append(f"processes are left: {left}")
    if recovered:
        median = statistics.median(recovered)
        whole.figures = f"a new steward answered after {median:.0f} ms (median)"
    return [*rows.values(), whole]


def _kill_during(work: Work) -> float:
    """Kill the steward while the work begins; return the ms until a new one answered."""
    work.root.call("steward.status")
    steward = holder(work.root.path)
    assert steward is not None, "there is no steward"
    failed: list[BaseException] = []

    def begin() -> None:
        try:
            work.begin()
        except LOST:
            pass  # killed in the middle of it
        except RetinueError as error:
            failed.append(error)

    parent = threading.Thread(target=begin)
    parent.start()
    time.sleep(work.chance.uniform(0, WITHIN_SECONDS))
    os.kill(steward, signal.SIGKILL)
    until(lambda: is_over(steward))
    parent.join(30)
    assert not parent.is_alive(), "a caller still waits for the killed steward"
    assert not failed, f"a caller was refused: {failed}"
    work.root.release()
    began = time.monotonic()
    work.root.call("steward.status")
    return (time.monotonic() - began) * 1000


CAMPAIGN = Campaign(
    promise="A steward killed at any moment loses no acknowledged result, ends nothing twice and "
    "leaves no process.",
    rounds=40,
    unit="kill",
    run=run,
    left_out="teams of models and MCP background tasks",
)
