"""Side by side with agents that people run instead: those that `./dev clients` installs, and
`massgen` where it is on the path.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import bare
import disk
import retinue
from core import ECHO, stewarded, task
from measure import Figure, Sample, median_ms, sample
from teams import CONFIG, Used

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.agents import Agent, claude, codex, gemini, opencode, surroundings
from support.conductor import conducting

MASSGEN_CONFIG = """
agents:
  - id: bench
    backend: {{type: chatcompletion, model: m, base_url: "{url}/v1", cwd: workspace}}
orchestrator:
  snapshot_storage: snapshots
  agent_temporary_workspace: temporary
  max_new_answers_per_agent: 1
  skip_voting: true
  skip_final_presentation: true
ui: {{display_type: simple}}
"""


def massgen(url: str, environment: dict[str, str]) -> list[str]:
    """One of its subagents: a process with one member, whose first answer is the last."""
    config = Path(environment["HOME"]) / "massgen.yaml"
    config.write_text(MASSGEN_CONFIG.format(url=url))
    environment |= {"OPENAI_API_KEY": "x"}
    return ["massgen", "--automation", "--config", str(config), "go"]


WIRES_BY_TYPE: dict[str, Agent] = {
    "claude -p": claude,
    "codex exec": codex,
    "gemini -p": gemini,
    "opencode run": opencode,
    "massgen": massgen,
}
ROUNDS = {"massgen": 2}  # of those that take many seconds
LESS_CPU = {"massgen": 600.0}  # how many times as much they should take at least
COMMAND, TEAM, KEPT = "a command", "a team", "the barest keeper"
TIMES = 10  # of ours for each of theirs: the kernel counts CPU in hundredths of a second
FASTER = (
    "A twenty-fifth of codex on this machine is {most:.1f} ms. The smallest program that keeps the "
    "request and the result, in files and in two durable commits, took {kept:.1f} ms in this run: "
    "it refuses, limits, isolates and judges nothing."
)
Taken = dict[str, list[float]]  # seconds, by who took them


async def agents(rounds: int) -> list[Figure]:
    """One answer of a model that thinks for no time, the same for all: a team's, and theirs."""
    walls: Taken = defaultdict(list)
    costs: Taken = defaultdict(list)
    with conducting([("new_answer", {"content": "done"})]) as model, bare.kept(ECHO) as ask:
        installed = _installed(model.url)
        async with stewarded() as opened:
            command = await task(opened, "inherited")
            config = CONFIG.format(port=model.port, model="m")
            team = await opened.create_task(title="team", config=config)
            steward = int((await opened.call("steward.status"))["pid"])
            for round_ in range(rounds + 1):
                if round_ == 1:  # whoever is first has files to read and to make
                    walls.clear()
                    costs.clear()
                walls[KEPT] += [_asked(ask) for _ in range(TIMES)]
                walls[COMMAND] += await _times(command, retinue.Brief(argv=ECHO, retries=0))
                before = Used(steward)
                walls[TEAM] += await _times(team, retinue.Brief("Answer", retries=0))
                costs[TEAM].append(sum(Used(steward).since(before, TIMES).values()) / 1000)
                due = [name for name in installed if round_ <= ROUNDS.get(name, rounds)]
                for name in due:
                    words, environment = installed[name]
                    wall, cost = _run(words, environment)
                    walls[name].append(wall)
                    costs[name].append(cost)
    return _figures(walls, costs, list(installed))


def _installed(url: str) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Words and environment of each that is there."""
    found = {}
    for name, agent in WIRES_BY_TYPE.items():
        environment = surroundings(disk.folder())
        words = agent(url, environment)
        if (program := shutil.which(words[0], path=environment["PATH"])) is not None:
            found[name] = [program, *words[1:]], environment
    if not found:
        print("bench: no agents to compare with; './dev clients' installs them", file=sys.stderr)
    return found


async def _times(work: retinue.Task, brief: retinue.Brief) -> list[float]:
    """Seconds of each, one after the other."""
    taken = []
    for _ in range(TIMES):
        began = time.perf_counter()
        batch = await work.run([brief])
        taken.append(time.perf_counter() - began)
        assert batch.success, batch.results[0].error
    return taken


def _asked(ask: Callable[[], str]) -> float:
    """Seconds until the keeper has answered."""
    began = time.perf_counter()
    ask()
    return time.perf_counter() - began


def _run(words: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Seconds until it has answered, and of CPU that it took with all it started."""
    null = subprocess.DEVNULL
    began = time.perf_counter()
    process = subprocess.Popen(
        words, cwd=environment["HOME"], env=environment, stdin=null, stdout=null, stderr=null
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"{words[0]} ended with {process.returncode}"
    return wall, usage.ru_utime + usage.ru_stime


def _figures(walls: Taken, costs: Taken, names: list[str]) -> list[Figure]:
    wall = {name: sample(name, taken) for name, taken in walls.items()}
    cost = {name: Sample(name, median_ms(used), unit="ms CPU") for name, used in costs.items()}
    figures = []
    if "codex exec" in names:
        ours, floor = wall[COMMAND], wall["codex exec"]
        ratio, most = ours.median / floor.median, 1 / 25
        note = FASTER.format(most=floor.median * most, kept=wall[KEPT].median)
        figures.append(
            Figure("spawn, codex", ratio, "x codex exec", most, note, ours=ours, floor=floor)
        )
    for name in names:
        ours, floor = wall[TEAM], wall[name]
        ratio = ours.median / floor.median
        figures.append(Figure(f"team, {name}", ratio, f"x {name}", ours=ours, floor=floor))
        ours, floor = cost[TEAM], cost[name]
        ratio, unit = floor.median / ours.median, f"x less CPU than {name}"
        least = LESS_CPU.get(name)
        figures.append(
            Figure(f"team CPU, {name}", ratio, unit, least, at_least=True, ours=ours, floor=floor)
        )
    return figures
