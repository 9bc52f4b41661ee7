"""The core's benchmarks: through a running steward, with real children."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import bare
import disk
import retinue
from measure import PYTHON, Act, Figure, Sample, in_turns, process, resident_kb, run_ns, sample

CONFIG = """
orchestrator:
  coordination:
    subagent_runtime_mode: {mode}
    subagent_min_timeout: 0.1
    subagent_max_timeout: 3600
    subagent_cancel_grace_seconds: [1, 1]
"""
ECHO = ["/bin/echo", "ok"]
PAUSE_S = 0.05


@asynccontextmanager
async def stewarded(root: Path | None = None) -> AsyncIterator[retinue.Retinue]:
    """A steward of this root, else of a fresh one, that is gone afterwards."""
    async with retinue.connect(root or disk.folder() / ".retinue") as opened:
        steward = os.pidfd_open((await opened.call("steward.status"))["pid"])
        try:
            yield opened
        finally:
            await opened.call("steward.stop", cancel=True)
    ended, _, _ = select.select([steward], [], [], 30)  # it writes in the folder to its end
    assert ended, "the steward did not end in time"
    os.close(steward)


async def task(opened: retinue.Retinue, mode: str, most: int = 3) -> retinue.Task:
    return await opened.create_task(
        title=mode, config=CONFIG.format(mode=mode), max_concurrent=most
    )


COST = (
    "A subagent takes about 1.9 ms of the steward's CPU where 32 are at work, 0.5 of its init's "
    "and 0.9 of its command's. The steward's are three durable commits, one after the other, and "
    "fifteen files and folders by which it can be read without the database."
)
KEPT = "x the least that keeps as much: files, rows, two durable commits"
FENCES = (
    "Namespaces, mounts, a user of its own, Landlock and seccomp are in force before the command "
    "runs: its init is cloned for it alone, and clones itself once more to put up the last of them."
)


async def spawn(rounds: int) -> list[Figure]:
    """Spawn to result of a no-op command, durable, against a bare process and an interpreter."""
    async with stewarded() as opened:
        shared, apart = await task(opened, "inherited"), await task(opened, "isolated")

        async def one(of: retinue.Task) -> None:
            batch = await of.run([retinue.Brief(argv=ECHO, retries=0)])
            assert batch.success, batch.results[0].error

        with bare.kept(ECHO) as ask:

            async def kept() -> None:
                ask()

            acts: dict[str, Act] = {
                "true": lambda: process("/bin/true"),
                "python": lambda: process(PYTHON, "-I", "-S", "-c", "pass"),
                "kept": kept,
                "inherited": lambda: one(shared),
                "isolated": lambda: one(apart),
            }
            taken = await in_turns(rounds, acts, at_once=10)
    of = {name: sample(name, seconds) for name, seconds in taken.items()}
    ours, python = of["inherited"], of["python"]
    isolated, most = of["isolated"], 0.8
    more = isolated.median - most * python.median
    unit = f"ms more than {most} x python -I -S -c pass"
    return [
        _ratio("spawn", ours, of["true"], "x /bin/true", 25),
        _ratio("spawn", ours, python, "x python -I -S -c pass", 1.0),
        Figure("spawn, kept", ours.median / of["kept"].median, KEPT, ours=ours, floor=of["kept"]),
        Figure("spawn isolated", more, unit, 6, FENCES, ours=isolated, floor=python),
    ]


async def pauses(rounds: int) -> list[Figure]:
    """What the same spawn takes of the steward's CPU, one after the other and after a silence."""
    used: dict[float, list[float]] = {0.0: [], PAUSE_S: []}
    async with stewarded() as opened:
        pid = (await opened.call("steward.status"))["pid"]
        work = await task(opened, "inherited")
        await _grow(work, 50)
        for pause, taken in used.items():
            for _ in range(rounds):
                await asyncio.sleep(pause)
                before = run_ns(pid)
                await work.run([retinue.Brief(argv=ECHO, retries=0)])
                taken.append((run_ns(pid) - before) / 1e9)
    warm, cold = (sample(f"after {each * 1000:.0f} ms", taken) for each, taken in used.items())
    unit = f"x the CPU of one that follows another, after {PAUSE_S * 1000:.0f} ms of silence"
    ratio = cold.median / warm.median
    return [Figure("spawn after a pause", ratio, unit, ours=cold, floor=warm)]


def _ratio(name: str, ours: Sample, floor: Sample, unit: str, most: float) -> Figure:
    return Figure(name, ours.median / floor.median, unit, most, COST, ours=ours, floor=floor)


async def growth(many: int) -> list[Figure]:
    """What a steward keeps in memory of subagents that are closed."""
    async with stewarded() as opened:
        work = await task(opened, "inherited", 32)
        await _grow(work, 500)
        pid = (await opened.call("steward.status"))["pid"]
        before = resident_kb(pid)
        await _grow(work, many)
        grown = (resident_kb(pid) - before) / many
    return [Figure("steward memory", grown, f"KB for each of {many:,} closed subagents", 1)]


async def _grow(work: retinue.Task, count: int) -> None:
    while count > 0:
        batch = min(count, 500)
        await work.run([retinue.Brief(argv=ECHO, retries=0)] * batch, queue=True)
        count -= batch
