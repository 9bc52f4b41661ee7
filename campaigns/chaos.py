"""Random faults of nodes, hub, steward and network under subagents that run on nodes."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from campaign import Campaign, Order, Row
from retinue.cluster.hub_server import Hub
from retinue.core.errors import RetinueError, StewardUnavailable
from support.cluster import TASK, Lab, Link
from support.reader import Reader
from support.roots import Root, holder
from support.traces import processes_that_mention

LEASE_S = 3.0
NODES = ("w1", "w2", "w3")
SLOTS = 5
OPEN = 12  # subagents that are under way at any time
SETTLE_S = 240.0
LOST = (StewardUnavailable, OSError, ValueError)  # what a caller sees of a killed steward
CONFIG = """\
orchestrator:
  coordination:
    subagent_max_concurrent: 64
    subagent_min_timeout: 1
    subagent_default_timeout: 120
    subagent_runtime_mode: inherited
    subagent_retries_on_node_loss: 10
"""
# Each attempt writes its own marks ten times a second: what is judged is the children's word.
WORK = """
file={marks}/$RETINUE_SUBAGENT_ID-$RETINUE_ATTEMPT
echo begin $(date +%s.%N) >> $file
n=0
while [ $n -lt {beats} ]; do n=$((n+1)); sleep 0.1; echo beat $(date +%s.%N) >> $file; done
echo made > made
echo end $(date +%s.%N) >> $file
echo answer of $RETINUE_SUBAGENT_ID
"""
FAULTS = {
    "kill -9 of a node's program": 8,
    "kill -9 of the steward": 5,
    "kill -9 of the hub": 2,
    "a node's link is cut": 3,
    "the steward's link is cut": 2,
    "a node's program is frozen": 2,
}


class Chaos:
    """One hub, three nodes, one steward, and what is wrong with them now."""

    def __init__(self, lab: Lab, chance: random.Random) -> None:
        self.lab = lab
        self.root = Root(lab.root)
        self.names: list[str] = []
        self.tried: Counter[str] = Counter()
        self._chance = chance
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._hurt: set[str] = set()  # nodes, or "steward link", that are to come back
        self._link = Link(lab.port)
        lab.links["steward"] = self._link
        self._began: dict[str, float] = {}

    def open(self) -> None:
        """Start all, with the steward behind a link that can be cut as well."""
        self.lab.open(CONFIG)
        self.lab.run("steward", "stop")
        file = self.lab.root / "cluster.json"
        document = json.loads(file.read_text())
        document["address"]["url"] = f"127.0.0.1:{self._link.port}"
        file.write_text(json.dumps(document))
        for name in NODES:
            self.lab.join(name, slots=SLOTS)

    def call(self, verb: str, **params: Any) -> Any:
        """Call the steward; start another where it was killed."""
        until = time.monotonic() + 60
        while True:
            try:
                return self.root.call(verb, **params)
            except LOST:
                self.root.release()
                if time.monotonic() > until:
                    raise

    def fill(self) -> None:
        """Spawn as many subagents as are missing; a lost answer is asked for again by its key."""
        states = Counter(row["state"] for row in self.list_rows().values())
        while sum(states.values()) - states["closed"] < OPEN:
            name = f"c{len(self.names)}"
            script = WORK.format(marks=self.lab.marks, beats=self._chance.choice((2, 8, 20)))
            brief = {"subagent_id": name, "argv": ["sh", "-c", script], "context_paths": []}
            tasks = [brief | {"on": "x86_64", "max_retries": 0}]
            self.call("subagent.spawn", task=TASK, tasks=tasks, key=name, queue=True)
            self.names.append(name)
            states["created"] += 1

    def list_rows(self) -> dict[str, Any]:
        rows = self.call("subagent.list", task=TASK, limit=100_000)
        return {row["agentInstance"]: row for row in rows}

    def mend_due(self, *, all_of_them: bool = False) -> None:
        now = time.monotonic()
        due = [each for each in self._due if all_of_them or each[0] <= now]
        self._due = [each for each in self._due if each not in due]
        for _, mend in due:
            mend()

    def hurt(self) -> None:
        """Do one fault; what is to come back does so by `mend_due`."""
        what = self._chance.choices(list(FAULTS), list(FAULTS.values()))[0]
        name = self._chance.choice(NODES)
        long = LEASE_S + 1.5
        if "node" in what and (name in self._hurt or len(self._hurt & set(NODES)) == 2):
            what = "kill -9 of the steward"
        if what == "kill -9 of a node's program":
            self.lab.kill(name)
            self._later(name, (0.1, 0.5, long), lambda: self.lab.restart_soon(name, SLOTS))
        elif what == "a node's program is frozen":
            process = self.lab.nodes[name]
            process.send_signal(signal.SIGSTOP)
            self._later(name, (0.5, long), lambda: process.send_signal(signal.SIGCONT))
        elif what == "a node's link is cut":
            self.lab.links[name].cut()
            self._later(name, (0.5, 1.5, long), self.lab.links[name].mend)
        elif what == "the steward's link is cut" and "steward link" not in self._hurt:
            self._link.cut()
            self._later("steward link", (0.5, 1.5, long), self._link.mend)
        elif what == "kill -9 of the hub":
            self._kill_hub()
        else:
            what = "kill -9 of the steward"
            self._kill_steward()
        self.tried[what] += 1

    def _later(self, name: str, pauses: tuple[float, ...], mend: Callable[[], None]) -> None:
        def work() -> None:
            self._hurt.discard(name)
            mend()

        self._hurt.add(name)
        self._due.append((time.monotonic() + self._chance.choice(pauses), work))

    def _kill_steward(self) -> None:
        pid = holder(self.lab.root)
        self.root.release()
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # A new one is needed for anything to go on; the next call starts it.
        self.call("steward.status")

    def _kill_hub(self) -> None:
        hub = Hub(self.lab.top / "hub")
        if pid := hub.find_process():
            os.kill(pid, signal.SIGKILL)
        time.sleep(self._chance.choice((0.05, 0.5, LEASE_S + 1.0)))
        asyncio.run(hub.start())


def run(order: Order) -> list[Row]:
    # The steward is started by this process and gets its environment.
    os.environ["XDG_STATE_HOME"] = str(order.folder / "lab" / "state")
    lab = Lab(order.folder / "lab", lease_s=LEASE_S)
    chance = random.Random(order.seed)
    chaos = Chaos(lab, chance)
    results = Row(case="subagents: one result each, the right one")
    marks = Row(case="attempts by their own marks: begun once, none overlap")
    whole = Row(case="the root at the end")
    try:
        chaos.open()
        for _ in order.iter_rounds():
            chaos.fill()
            chaos.mend_due()
            chaos.hurt()
            time.sleep(chance.uniform(0, 0.6))
        chaos.mend_due(all_of_them=True)
        judge_results(chaos, results)
        judge_marks(lab.marks, marks)
        judge_root(chaos, whole)
    finally:
        chaos.root.release()
        lab.close()
    if left := processes_that_mention(str(lab.marks)):
        whole.violations.append(f"processes are left: {left}")
    faults = [Row(case=name, tried=chaos.tried[name]) for name in FAULTS]
    return [*faults, results, marks, whole]


def judge_results(chaos: Chaos, row: Row) -> None:
    """Check that each subagent has closed once, with its own answer and files."""
    until = time.monotonic() + SETTLE_S
    rows = chaos.list_rows()
    while any(each["state"] != "closed" for each in rows.values()) and time.monotonic() < until:
        time.sleep(0.5)
        rows = chaos.list_rows()
    row.tried = len(chaos.names)
    closed = Counter(event["agentInstance"] for event in chaos.lab.events("agent.subagent_closed"))
    attempts = 0
    for name in chaos.names:
        shown = chaos.call("subagent.show", task=TASK, subagent=name)
        attempts += len(shown["attempts"])
        if shown["state"] != "closed":
            row.violations.append(f"{name} did not end: {shown['status']} {shown['waits_for']}")
        elif shown["status"] != "completed":
            ends = [each["result"] and each["result"]["error"] for each in shown["attempts"]]
            row.violations.append(f"{name} is {shown['status']}: {ends}")
        else:
            answer = chaos.call("subagent.result", task=TASK, subagent=name)["answer"]
            made = chaos.lab.folder(name) / "workspace" / "made"
            if answer.strip() != f"answer of {name}" or made.read_text() != "made\n":
                row.violations.append(f"{name} has the wrong answer or files: {answer!r}")
            if closed[name] != 1:
                row.violations.append(f"{name} was closed {closed[name]} times")
    row.figures = f"{attempts} attempts"


def judge_marks(folder: Path, row: Row) -> None:
    """Check that no attempt began twice, and no two attempts of a subagent overlap."""
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for file in sorted(folder.iterdir()):
        row.tried += 1
        # A child that is killed may leave half a line.
        lines = [line.split() for line in file.read_text().splitlines() if line.count(" ") == 1]
        if [line[0] for line in lines].count("begin") != 1:
            row.violations.append(f"{file.name} began more than once, or never")
            continue
        spans[file.name.rpartition("-")[0]].append((float(lines[0][1]), float(lines[-1][1])))
    for name, found in spans.items():
        found.sort()
        row.violations += [
            f"two attempts of {name} overlap by {before[1] - after[0]:.3f} s"
            for before, after in pairwise(found)
            if before[1] >= after[0]
        ]


def judge_root(chaos: Chaos, row: Row) -> None:
    row.tried = 1
    try:
        Reader(chaos.lab.root).check(finished=True)
        chaos.root.sound()
    except (AssertionError, RetinueError) as error:
        row.violations.append(str(error)[:500])


CAMPAIGN = Campaign(
    promise="Whatever is killed, frozen or cut between a steward, a hub and its nodes, each "
    "subagent ends once, with its own result, and no two of its attempts run at a time.",
    rounds=60,
    unit="fault",
    run=run,
    left_out="power loss, three hubs, isolated children and teams",
)
