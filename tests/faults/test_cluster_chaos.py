"""Nodes, steward and hub are killed at random; every subagent still ends exactly once.

RETINUE_CHAOS="SUBAGENTS SECONDS SEED" makes the campaign longer.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from support.cluster import TASK, Lab

pytest.importorskip("nats")
COUNT, SECONDS, SEED = (
    (int(word) for word in os.environ["RETINUE_CHAOS"].split())
    if "RETINUE_CHAOS" in os.environ
    else (24, 20, 7)
)
LEASE_S = 3.0
CONFIG = """\
orchestrator:
  coordination:
    subagent_max_concurrent: 64
    subagent_min_timeout: 1
    subagent_runtime_mode: inherited
    subagent_retries_on_node_loss: 10
"""
# Each attempt writes its own marks ten times a second: what is judged is the children's word.
WORK = """
file={marks}/$RETINUE_SUBAGENT_ID-$RETINUE_ATTEMPT
echo begin $(date +%s.%N) >> $file
n=0
while [ $n -lt 40 ]; do n=$((n+1)); sleep 0.1; echo beat $(date +%s.%N) >> $file; done
echo end $(date +%s.%N) >> $file
echo answer of $RETINUE_SUBAGENT_ID
"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path, lease_s=LEASE_S)
    try:
        made.open(CONFIG)
        for name in ("w1", "w2", "w3"):
            made.join(name, slots=6)
        yield made
    finally:
        made.close()


class Chaos:
    """One campaign of random faults."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.faults: Counter[str] = Counter()
        self._down: dict[str, float] = {}  # nodes that are to come back, with the time
        self._cut: dict[str, float] = {}  # nodes whose link is to be mended, with the time
        self._chance = random.Random(SEED)

    def step(self) -> None:
        for name, due in list(self._down.items()):
            if time.monotonic() > due:
                del self._down[name]
                self.lab.restart(name, slots=6)
        for name, due in list(self._cut.items()):
            if time.monotonic() > due:
                del self._cut[name]
                self.lab.links[name].mend()
        what = self._chance.choices(("node", "steward", "hub", "link"), (6, 3, 1, 1))[0]
        name = self._chance.choice(("w1", "w2", "w3"))
        here = name not in self._down and name not in self._cut
        if what == "node" and here and len(self._down) < 2:
            self.lab.kill(name)
            pause = self._chance.choice((0.1, 0.5, LEASE_S + 1.5))
            self._down[name] = time.monotonic() + pause
        elif what == "link" and here and not self._cut:
            self.lab.links[name].cut()
            pause = self._chance.choice((0.5, LEASE_S + 1.5))
            self._cut[name] = time.monotonic() + pause
        elif what == "steward":
            self.lab.kill_steward()
        elif what == "hub":
            os.kill(self.lab.find_hub_process(), signal.SIGKILL)
            time.sleep(self._chance.choice((0.05, 0.5)))
            self.lab.run("hub", "start")
        else:
            return
        self.faults[what] += 1

    def heal(self) -> None:
        for name in self._cut:
            self.lab.links[name].mend()
        self._cut.clear()
        for name in list(self._down):
            self.lab.restart(name, slots=6)
        self._down.clear()


@pytest.mark.timeout(120 + 3 * SECONDS + 5 * COUNT)
def test_every_subagent_ends_exactly_once_whatever_is_killed(lab: Lab) -> None:
    names = [f"c{number}" for number in range(COUNT)]
    for name in names:
        lab.spawn(name, WORK.format(marks=lab.marks), "--queue")
    chaos = Chaos(lab)
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        chaos.step()
    chaos.heal()
    rows = lab.wait_closed(*names, seconds=60 + 3 * COUNT)
    assert [row["status"] for row in rows] == ["completed"] * COUNT, chaos.faults
    for name in names:
        assert lab.result(name)["answer"].strip() == f"answer of {name}"
    closed = Counter(event["agentInstance"] for event in lab.events("agent.subagent_closed"))
    assert set(closed.values()) == {1}
    judge_marks(lab.marks)
    assert chaos.faults["node"] >= 1
    print(f"{COUNT} subagents, faults {dict(chaos.faults)}, attempts {count_attempts(rows)}")
    assert lab.run("verify", TASK).returncode == 0


def count_attempts(rows: list[dict[str, list[object]]]) -> int:
    return sum(len(row["attempts"]) for row in rows)


def judge_marks(folder: Path) -> None:
    """Check that no attempt began twice, and no two attempts of a subagent overlap."""
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for file in sorted(folder.iterdir()):
        lines = [line.split() for line in file.read_text().splitlines()]
        assert [line[0] for line in lines].count("begin") == 1, f"{file.name} began twice"
        spans[file.name.rpartition("-")[0]].append((float(lines[0][1]), float(lines[-1][1])))
    for name, found in spans.items():
        found.sort()
        for before, after in pairwise(found):
            assert before[1] < after[0], f"two attempts of {name} overlap"
