"""kill -9 of the steward at random moments under mixed work, and of those that follow it."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import statistics
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from campaign import Campaign, Order, Row
from retinue.core.errors import RetinueError, StewardUnavailable
from retinue.trust import trust_root
from support import mcp
from support.reader import Reader
from support.repositories import Repository, plan, step
from support.roots import CONFIG, Root, held, holder, sh, until
from support.scripted import Models
from support.teams import brief, team
from support.traces import is_over, processes_that_mention

WITHIN_SECONDS = 0.6  # of the first call, by when most work has ended
START_SECONDS = 0.4  # a steward that recovers is killed within this time
AGAIN = 0.4  # the chance that the next steward is killed as well
ROUNDS_PER_ROOT = 250  # then a new one: the checks of a round depend on the size of its root
LOST = (StewardUnavailable, OSError, ValueError)  # what a caller sees of a killed steward
ASKS = """
[ -e asked ] && { tail -n 1 "$RETINUE_BRIEF"; exit; }
touch asked; echo '{"status": "blocked", "questions": ["which colour?"]}' > "$RETINUE_FINAL"
"""


class Scene:
    """A root in a repository, and what works beside it: a model provider, an MCP server."""

    def __init__(self, root: Root, repository: Repository, models: Models, server: mcp.Raw) -> None:
        self.root = root
        self.repository = repository
        self.models = models
        self.server = server
        self.reader = Reader(root.path)


class Work:
    """Work of one task. `begin` runs while the steward is killed, `finish` after it."""

    def __init__(self, scene: Scene, number: int, chance: random.Random) -> None:
        self.scene = scene
        self.root = scene.root
        self.number = number
        self.chance = chance
        self.task = ""
        self.acknowledged: dict[str, Any] = {}  # results that a caller received

    def begin(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        raise NotImplementedError

    def create_task(self, limit: int = 20) -> str:
        """Create a task whose children are isolated, or not."""
        mode = self.chance.choice(("isolated", "inherited", "inherited"))
        text = CONFIG.format(limit=limit).replace("inherited", mode)
        return str(self.root.call("task.create", title="t", config_text=text)["task_id"])

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
        self.task = self.create_task(limit=3)
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
        self.task = self.create_task(limit=2)
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
    """A subagent that asks; a person answers its gate, or its parent continues it."""

    answered = False

    def begin(self) -> None:
        self.task = self.create_task()
        self.root.spawn(self.task, sh(ASKS, subagent_id="asks"), key="one")
        self.root.call("subagent.wait_any", task=self.task, timeout_seconds=20)
        self.answer()
        self.answered = True
        self.take_results(["asks"])

    def answer(self) -> None:
        if self.chance.random() < 0.5:
            self.root.call("subagent.continue", task=self.task, subagent="asks", message="green")
        else:
            (gate,) = self.root.call("gate.list", task=self.task)
            self.root.call("gate.approve", task=self.task, gate=gate["gate_id"], answer="green")

    def finish(self) -> None:
        if not self.task:
            return
        self.root.spawn(self.task, sh(ASKS, subagent_id="asks"), key="one")
        self.root.call("subagent.wait_all", task=self.task, timeout_seconds=30)
        if self.root.rows(self.task)["asks"]["status"] == "blocked":
            assert not self.answered, "an acknowledged answer is lost"
            self.answer()
            self.root.call("subagent.wait_all", task=self.task, timeout_seconds=30)

    def check_results(self, results: dict[str, Any]) -> None:
        assert (results["asks"]["status"], results["asks"]["answer"]) == ("completed", "green")


class Cancel(Work):
    """Of two subagents that run, one is cancelled."""

    cancelled = False

    def begin(self) -> None:
        self.briefs = [
            sh("sleep 30 & setsid sleep 30", subagent_id="stops"),
            sh("sleep 0.1; echo stayed", subagent_id="stays"),
        ]
        self.task = self.create_task()
        self.root.spawn(self.task, *self.briefs, key="one")
        self.cancel()
        self.cancelled = True
        self.take_results(["stops", "stays"])

    def cancel(self) -> None:
        self.root.call("subagent.cancel", task=self.task, subagent="stops")

    def finish(self) -> None:
        if not self.task:
            return
        self.root.spawn(self.task, *self.briefs, key="one")
        if not self.cancelled:
            try:
                self.cancel()
            except RetinueError as error:
                # By the call whose answer was lost.
                assert error.code == "already_cancelled", error
        self.root.call("subagent.wait_all", task=self.task, timeout_seconds=30)

    def check_results(self, results: dict[str, Any]) -> None:
        found = {name: result["status"] for name, result in results.items()}
        assert found == {"stops": "cancelled", "stays": "completed"}, found


class Team(Work):
    """Two models that answer, vote and present."""

    def begin(self) -> None:
        mode = self.chance.choice(("isolated", "inherited"))
        config = self.scene.models.config(
            "alpha", "beta", coordination=f"subagent_runtime_mode: {mode}"
        )
        self.briefs = [brief("Say hello", subagent_id="team")]
        self.task = str(self.root.call("task.create", title="t", config_text=config)["task_id"])
        self.root.spawn(self.task, *self.briefs, key="one")
        self.take_results(["team"])

    def finish(self) -> None:
        if self.task:
            self.root.spawn(self.task, *self.briefs, key="one")
            self.root.call("subagent.wait_all", task=self.task, timeout_seconds=60)

    def check_results(self, results: dict[str, Any]) -> None:
        found = (results["team"]["status"], results["team"]["answer"])
        assert found == ("completed", "presented by alpha"), results["team"]


class Mcp(Work):
    """Two background tasks of an MCP client, whose server outlives the steward."""

    def begin(self) -> None:
        self.names = [f"m{self.number}-{name}" for name in ("a", "b")]
        self.told: dict[str, str] = {}
        self.spawn()
        self.task = "mcp"
        self.wait_for_all()

    def use(self, tool: str, **arguments: Any) -> dict[str, Any]:
        server = self.scene.server
        answer = server.answer(server.call(tool, arguments))
        document: dict[str, Any] = answer["result"].get("structuredContent") or {}
        if answer["result"].get("isError"):
            said = answer["result"]["content"][0]["text"]
            raise StewardUnavailable(said) if "steward" in said else AssertionError(said)
        return document

    def spawn(self) -> None:
        tasks = [mcp.task(f"echo >> ran; sleep 0.1; echo {name}", name) for name in self.names]
        self.use(mcp.SPAWN, tasks=tasks, background=True)

    def wait_for_all(self) -> None:
        """Receive what was not told yet; a result whose telling was lost may come again."""
        while set(self.told) != set(self.names):
            told = self.use(mcp.WAIT, timeout_seconds=20)
            if told["job_id"] is None:
                return
            self.told[told["job_id"]] = told["result"]["answer"]

    def finish(self) -> None:
        self.spawn()  # the same ids: nothing is started twice
        self.task = "mcp"
        self.wait_for_all()
        self.root.call("subagent.wait_all", task="mcp", timeout_seconds=30)

    def check(self, reader: Reader) -> None:
        reader.check(finished=True, only=["mcp"])
        for name in self.names:
            fetched = self.use(mcp.FETCH, job_id=name)["result"]
            assert fetched["answer"] == name == self.told.get(name, name), fetched
            assert self.count_runs(name) == 1, f"{name} ran {self.count_runs(name)} times"
            left = processes_that_mention(str(self.root.folder("mcp", name)))
            assert left == {}, f"processes are left: {left}"


class Plan(Work):
    """A plan of three steps, merged in order."""

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
        joined = self.scene.repository.joined(self.branch)
        assert joined == ["one", "two", "three"], f"merged: {joined}"
        assert self.scene.repository.files(self.branch)["three"] == "1\n2"


KINDS: dict[str, type[Work]] = {
    "commands": Commands,
    "queued commands": Queue,
    "question and answer": Gate,
    "cancelled commands": Cancel,
    "plan with merges": Plan,
    "team of two models": Team,
    "MCP background tasks": Mcp,
}


class Tally:
    """Counts of a whole campaign."""

    def __init__(self) -> None:
        self.kinds = {name: Row(case=name) for name in KINDS}
        self.again = Row(case="killed again while it recovers")
        self.roots = Row(case="roots at their end")
        self.answered_ms: list[float] = []

    def to_rows(self) -> list[Row]:
        if self.answered_ms:
            median = statistics.median(self.answered_ms)
            self.roots.figures = f"a new steward answers after {median:.0f} ms (median, by time)"
        return [*self.kinds.values(), self.again, self.roots]


def run(order: Order) -> list[Row]:
    tally = Tally()
    numbers = list(range(order.rounds))
    with Models(team()) as models:
        for first in range(0, len(numbers), ROUNDS_PER_ROOT):
            if time.monotonic() < order.end:
                batch = numbers[first : first + ROUNDS_PER_ROOT]
                _attack_root(order, batch, models, tally)
    return tally.to_rows()


def _attack_root(order: Order, batch: list[int], models: Models, tally: Tally) -> None:
    repository = Repository(order.folder / f"project-{batch[0]}")
    untouched = repository.untouched()
    path = repository.path / ".retinue"
    path.mkdir(mode=0o700)
    (path / "config.yaml").write_text(mcp.CONFIG)
    trust_root(path, os.environ, ())
    roots = tally.roots
    before = len(roots.violations)
    with held(path) as root, mcp.Raw(path) as server:
        scene = Scene(root, repository, models, server.open())
        for number in batch:
            if time.monotonic() < order.end:
                _attack_once(scene, number, random.Random(f"{order.seed}:{number}"), tally)
        roots.tried += 1
        try:
            scene.reader.check(finished=True)
            root.sound()
        except (AssertionError, RetinueError) as error:
            roots.note(f"{path}: {str(error)[:500]}")
        if repository.untouched() != untouched:
            roots.note(f"{path}: the user's tree, index or branches were changed")
        root.stop()
    left = processes_that_mention(str(path))
    if left:
        roots.note(f"processes are left: {left}")
    if len(roots.violations) == before and not any(row.violations for row in tally.kinds.values()):
        shutil.rmtree(repository.path, ignore_errors=True)


def _attack_once(scene: Scene, number: int, chance: random.Random, tally: Tally) -> None:
    name = chance.choice(list(KINDS))
    row = tally.kinds[name]
    row.tried += 1
    work = KINDS[name](scene, number, chance)
    try:
        _kill_during(work)
        while chance.random() < AGAIN:
            tally.again.tried += _kill_at_start(scene.root, chance.uniform(0, START_SECONDS))
        began = time.monotonic()
        scene.root.call("steward.status")
        tally.answered_ms.append((time.monotonic() - began) * 1000)
        work.finish()
        work.check(scene.reader)
    except Exception as error:
        place = f"round {number} in {scene.root.path}, {work.task}"
        row.note(f"{place}: {type(error).__name__}: {str(error)[:500]}")


def _kill_during(work: Work) -> None:
    """Kill the steward while the work begins."""
    work.root.call("steward.status")
    steward = holder(work.root.path)
    assert steward is not None, "there is no steward"
    failed: list[Exception] = []

    def begin() -> None:
        try:
            work.begin()
        except LOST:
            pass  # killed in the middle of it
        except Exception as error:
            failed.append(error)

    parent = threading.Thread(target=begin)
    parent.start()
    time.sleep(work.chance.uniform(0, WITHIN_SECONDS))
    os.kill(steward, signal.SIGKILL)
    until(lambda: is_over(steward))
    parent.join(60)
    assert not parent.is_alive(), "a caller still waits for the killed steward"
    assert not failed, f"a caller was refused: {failed}"
    work.root.release()


def _kill_at_start(root: Root, seconds: float) -> int:
    """Have a steward started, and kill it so long after it took the root; return how many."""

    def ask() -> None:
        with suppress(*LOST):
            root.call("steward.status")

    caller = threading.Thread(target=ask)
    caller.start()
    lock = root.path / "steward.lock"

    def find_steward() -> int:
        text = lock.read_text()
        return int(text) if text.strip() and not is_over(int(text)) else 0

    steward = until(find_steward)
    time.sleep(seconds)
    with suppress(ProcessLookupError):
        os.kill(steward, signal.SIGKILL)
    until(lambda: is_over(steward))
    caller.join(60)
    assert not caller.is_alive(), "a caller still waits for the killed steward"
    root.release()
    return 1


CAMPAIGN = Campaign(
    promise="A steward killed at any moment loses no acknowledged result, ends nothing twice and "
    "leaves no process.",
    rounds=40,
    unit="kill, and some more of the stewards that follow",
    run=run,
    left_out="kill -9 of children and of the MCP server (tested in tests/faults)",
)
