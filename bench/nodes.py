"""Subagents on nodes against the same subagents here: a hub, nodes and a root on this machine.

Every part has a hub of its own on the loopback device, so the figures hold no network delay.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import disk
import retinue
from core import ECHO, stewarded
from gateway import CLIENT, KINDS, PROVIDER
from gateway import CONFIG as MODELS
from measure import PYTHON, Act, Figure, Sample, cpu_seconds, in_turns, resident_kb, sample
from plans import WHO, repository
from provider import provider
from support.cluster import Lab

CONFIG = """
orchestrator:
  coordination:
    subagent_runtime_mode: isolated
    subagent_max_concurrent: 64
    subagent_min_timeout: 0.1
    subagent_max_timeout: 3600
    subagent_cancel_grace_seconds: [1, 1]
    subagent_retries_on_node_loss: 0
"""
ON = ("isolated",)  # a label that every node of this machine has
BOUND_S = 60.0
# A child that tells by its answer when it was interrupted.
TELL_INTERRUPT = [
    *(PYTHON, "-I", "-S", "-c"),
    "import os, signal, sys, time\n"
    "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})\n"
    "print('up', flush=True)\n"
    "signal.sigwait({signal.SIGINT})\n"
    "open(os.environ['RETINUE_ANSWER'], 'w').write(str(time.time()))\n",
]
TWO_CORES = (
    "hub, steward and nodes share the cores of this machine, so a part of this is their turns; "
    "the least is about 4.5 round trips to the hub, each of which a synced write may hold up."
)


@asynccontextmanager
async def connected(
    *names: str, slots: int = 16, lease_s: float = 30.0, project: Path | None = None
) -> AsyncIterator[tuple[Lab, retinue.Retinue]]:
    """A root that is connected to a hub with these nodes; all of it is gone afterwards."""
    lab = Lab(disk.folder() / "lab", lease_s=lease_s)
    if project is not None:
        lab.project.rmdir()
        lab.project.symlink_to(project)
    try:
        await asyncio.to_thread(lab.open)
        for name in names:
            await asyncio.to_thread(lab.join, name, slots=slots)
        async with stewarded(lab.root) as opened:
            yield lab, opened
    finally:
        await asyncio.to_thread(lab.close)


async def nodes(full: bool) -> list[Figure]:
    return [
        *await _overhead(200 if full else 40),
        await _throughput(100, 5 if full else 2),
        *await _cancel(40 if full else 10),
        *await _loss(3 if full else 1),
        *await _shipment(20_000, 8 if full else 4),
        *await _models(100 if full else 40, 3 if full else 2),
        *await _idle(60 if full else 20),
    ]


async def _open_task(opened: retinue.Retinue, text: str = CONFIG) -> retinue.Task:
    return await opened.create_task(title="nodes", config=text, max_concurrent=32)


async def _run(work: retinue.Task, on: Sequence[str], count: int = 1) -> None:
    batch = await work.run([retinue.Brief(argv=ECHO, retries=0, on=on)] * count, queue=True)
    assert batch.success, [each.error for each in batch.results if not each.success]


async def _overhead(rounds: int) -> list[Figure]:
    """Spawn to result of a no-op command, isolated, on a node and here in turns."""
    async with connected("w1") as (_, opened):
        work = await _open_task(opened)
        acts: dict[str, Act] = {
            "here": lambda: _run(work, ()),
            "on a node": lambda: _run(work, ON),
        }
        taken = await in_turns(rounds, acts)
    here, there = sample("here", taken["here"]), sample("on a node", taken["on a node"])
    more = [away - near for near, away in zip(taken["here"], taken["on a node"], strict=True)]
    median = statistics.median(more) * 1000
    unit = "ms more on a node than here, isolated, pair by pair"
    return [Figure("node overhead", median, unit, 12, TWO_CORES, ours=there, floor=here)]


async def _throughput(count: int, rounds: int) -> Figure:
    """Many no-op commands on two nodes and here, in turns."""
    async with connected("w1", "w2") as (_, opened):
        work = await _open_task(opened)
        acts: dict[str, Act] = {
            "here": lambda: _run(work, (), count),
            "on two nodes": lambda: _run(work, ON, count),
        }
        taken = await in_turns(rounds, acts)
    rates = {name: [count / seconds for seconds in each] for name, each in taken.items()}
    here, there = (Sample(name, statistics.median(each), unit="/s") for name, each in rates.items())
    unit = f"x the rate here, {count} commands, 32 at once, isolated"
    ratio = there.median / here.median
    return Figure(
        "node throughput", ratio, unit, 0.4, TWO_CORES, at_least=True, ours=there, floor=here
    )


async def _cancel(rounds: int) -> list[Figure]:
    """Cancel until the child has its signal, and until `cancel` returns."""
    reached: dict[str, list[float]] = {"here": [], "on a node": []}
    returned: dict[str, list[float]] = {"here": [], "on a node": []}
    async with connected("w1") as (lab, opened):
        work = await _open_task(opened)
        for _ in range(rounds):
            for name, on in (("here", ()), ("on a node", ON)):
                brief = retinue.Brief(argv=TELL_INTERRUPT, retries=0, on=on)
                (spawned,) = await work.spawn([brief])
                folder = lab.root / "tasks" / work.id / "agents" / spawned.id
                await _wait_text(folder / "runtime/stdout.log", "up\n")
                clock, began = time.time(), time.perf_counter()
                await work.cancel(spawned.id)
                returned[name].append(time.perf_counter() - began)
                answer = (await work.result(spawned.id)).answer
                reached[name].append(float(answer or "inf") - clock)
    here, there = sample("here", reached["here"]), sample("on a node", reached["on a node"])
    back, whole = sample("here", returned["here"]), sample("on a node", returned["on a node"])
    return [
        Figure(
            "node cancel", there.median, "ms to SIGINT in the child", 20, ours=there, floor=here
        ),
        Figure("node cancel, slowest", max(reached["on a node"]), "s to SIGINT in the child", 0.5),
        Figure("node cancel, closed", whole.median / 1000, "s", 0.5, ours=whole, floor=back),
    ]


async def _wait_text(file: Path, text: str) -> None:
    until = time.monotonic() + BOUND_S
    while not _has_text(file, text):
        assert time.monotonic() < until, f"{text!r} was not written in time"
        await asyncio.sleep(0.002)


def _has_text(file: Path, text: str) -> bool:
    return file.exists() and file.read_text() == text


async def _loss(rounds: int) -> list[Figure]:
    """kill -9 of a node's program until the steward calls it suspected, and lost."""
    lease_s = 5.0
    suspected: list[float] = []
    lost: list[float] = []
    async with connected("w1", lease_s=lease_s) as (lab, opened):
        for number in range(rounds):
            if number:
                await asyncio.to_thread(lab.restart, "w1")
            await _wait_state(opened, "up")
            began = time.perf_counter()
            lab.kill("w1")
            await _wait_state(opened, "suspected")
            suspected.append(time.perf_counter() - began)
            await _wait_state(opened, "lost")
            lost.append(time.perf_counter() - began)
    after, early = max(lost) - lease_s, max(suspected) / lease_s
    floor = Sample("the lease", lease_s, unit="s")
    return [
        Figure(
            *("node loss", after, f"s after the lease of {lease_s:g} s, slowest of {rounds}", 2),
            ours=Sample("kill -9 to lost", max(lost), unit="s"),
            floor=floor,
        ),
        Figure("node suspected", early, "of the lease; 10 of 30 s are allowed", 1 / 3),
    ]


async def _wait_state(opened: retinue.Retinue, state: str) -> None:
    until = time.monotonic() + BOUND_S
    while [row["state"] for row in await opened.call("nodes.list")] != [state]:
        assert time.monotonic() < until, f"the node did not become {state}"
        await asyncio.sleep(0.02)


async def _shipment(files: int, commits: int) -> list[Figure]:
    """Spawn to start of a subagent over a commit: the first on a node, then over the next ones."""
    taken: dict[str, list[float]] = {"here": [], "on a node": []}
    with repository(files) as top:
        async with connected("w1", project=top) as (_, opened):
            for number in range(commits + 1):
                if number:
                    _change(top, number)
                for name, on in (("here", ()), ("on a node", ON)):
                    work = await _open_task(opened)
                    taken[name].append(await _time_start(work, on))
    first_here, first = taken["here"][0], taken["on a node"][0]
    here, there = sample("here", taken["here"][1:]), sample("on a node", taken["on a node"][1:])
    pairs = zip(taken["here"][1:], taken["on a node"][1:], strict=True)
    more = statistics.median(away - near for near, away in pairs)
    what = f"{files:,} files"
    return [
        Figure(
            *("node, first shipment", first, f"s to the start over {what}", 5),
            ours=Sample("on a node", first, unit="s"),
            floor=Sample("here", first_here, unit="s"),
        ),
        Figure(
            *("node, next commit", more, f"s more than here, 20 of {what} changed", 0.15),
            ours=there,
            floor=here,
        ),
    ]


def _change(top: Path, number: int) -> None:
    for each in range(20):
        (top / f"d{each}" / "f1.txt").write_text(f"commit {number}\n")
    subprocess.run(["git", *WHO, "commit", "-qam", f"commit {number}"], cwd=top, check=True)


async def _time_start(work: retinue.Task, on: Sequence[str]) -> float:
    brief = retinue.Brief(argv=ECHO, retries=0, on=on, integration="merge", owns=["**"])
    began = time.perf_counter()
    (spawned,) = await work.spawn([brief])
    taken = time.perf_counter() - began
    await work.wait_any(BOUND_S)
    result = await work.result(spawned.id)
    assert result.success, result.error
    return taken


async def _models(rounds: int, turns: int) -> list[Figure]:
    """Streams of a model through gateway and hub against the gateway alone, and no gateway."""
    taken: dict[str, dict[str, list[float]]] = {}
    async with provider(PROVIDER) as (port, _), connected("w1") as (_, opened):
        text = MODELS.format(port=port, mode="inherited", network="on")
        work = await _open_task(opened, text)
        argv = [PYTHON, "-I", "-c", CLIENT, str(rounds), str(port), json.dumps(KINDS)]
        for _ in range(turns):
            for name, on in (("here", ()), ("on a node", ("x86_64",))):
                brief = retinue.Brief(argv=argv, retries=0, timeout_seconds=300, on=on)
                (result,) = (await work.run([brief])).results
                assert result.success and result.answer, f"{result.error} {result.log_path}"
                for kind, ways in json.loads(result.answer).items():
                    known = taken.setdefault(kind, {})
                    known.setdefault(name, []).extend(ways["gateway"])
                    known.setdefault("direct", []).extend(ways["direct"])
    first, paced, flood = (
        {name: sample(name, each) for name, each in taken[kind].items()}
        for kind in ("first", "paced", "flood")
    )
    more = first["on a node"].median - first["here"].median
    speed = paced["direct"].median / paced["on a node"].median
    burst = flood["here"].median / flood["on a node"].median
    return [
        Figure(
            *("node model stream", more, "ms to first byte over a local subagent", 2),
            ours=first["on a node"],
            floor=first["here"],
        ),
        Figure(
            *("node model streams", speed, "of direct, 32 streams, 3200/s", 0.85),
            at_least=True,
            ours=paced["on a node"],
            floor=paced["direct"],
        ),
        # Without a target: no model writes this fast.
        Figure(
            *("node model streams", burst, "of a local subagent's, 32 streams, flood"),
            ours=flood["on a node"],
            floor=flood["here"],
        ),
    ]


async def _idle(seconds: float) -> list[Figure]:
    """What hub, steward and two nodes cost while nothing runs."""
    async with connected("w1", "w2") as (lab, opened):
        await _run(await _open_task(opened), ON, 8)  # so that everything is loaded
        hub = lab.find_hub_process()
        programs = [process.pid for process in lab.nodes.values()]
        everything = [hub, (await opened.call("steward.status"))["pid"], *programs]
        await asyncio.sleep(2)  # what is put off for a moment is done
        before = {pid: cpu_seconds(pid) for pid in everything}
        await asyncio.sleep(seconds)
        used = {pid: cpu_seconds(pid) - before[pid] for pid in everything}
        share = sum(used.values()) / seconds * 100
        details = {
            "hub_percent": used[hub] / seconds * 100,
            "nodes_percent": sum(used[pid] for pid in programs) / seconds * 100,
        }
        hub_mb = resident_kb(hub) / 1024
        node_mb = max(map(resident_kb, programs)) / 1024
    what = "% of a core: hub, steward, two nodes"
    return [
        Figure("nodes idle", share, what, 1, details=details),
        Figure("hub memory", hub_mb, "MB resident", 40),
        Figure("node memory", node_mb, "MB resident", 60),
    ]
