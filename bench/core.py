"""The core's benchmarks: through a running steward, with real children."""

from __future__ import annotations

import os
import select
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import disk
import retinue
from measure import PYTHON, Figure, Sample, bare, in_turns, resident_kb, sample

CONFIG = """
orchestrator:
  coordination:
    subagent_runtime_mode: {mode}
    subagent_min_timeout: 0.1
    subagent_max_timeout: 3600
    subagent_cancel_grace_seconds: [1, 1]
"""
ECHO = ["/bin/echo", "ok"]


@asynccontextmanager
async def stewarded() -> AsyncIterator[retinue.Retinue]:
    async with retinue.connect(disk.folder() / ".retinue") as opened:
        steward = os.pidfd_open((await opened.call("steward.status"))["pid"])
        try:
            yield opened
        finally:
            await opened.call("steward.stop", cancel=True)
    select.select([steward], [], [], 30)  # it writes in the folder to its end
    os.close(steward)


async def task(opened: retinue.Retinue, mode: str, most: int = 3) -> retinue.Task:
    return await opened.create_task(
        title=mode, config=CONFIG.format(mode=mode), max_concurrent=most
    )


COST = (
    "A subagent takes about 2.1 ms of the steward's CPU, 0.5 of its init's and 0.9 of its "
    "command's. The steward's are three durable commits, one after the other, and fifteen files "
    "and folders by which it can be read without the database."
)
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

        taken = await in_turns(
            rounds,
            true=lambda: bare("/bin/true"),
            python=lambda: bare(PYTHON, "-I", "-S", "-c", "pass"),
            inherited=lambda: one(shared),
            isolated=lambda: one(apart),
        )
    of = {name: sample(name, seconds) for name, seconds in taken.items()}
    ours, python = of["inherited"], of["python"]
    isolated, most = of["isolated"], 0.8
    more = isolated.median - most * python.median
    unit = f"ms more than {most} x python -I -S -c pass"
    return [
        _ratio("spawn", ours, of["true"], "x /bin/true", 25),
        _ratio("spawn", ours, python, "x python -I -S -c pass", most),
        Figure("spawn isolated", more, unit, 6, FENCES, ours=isolated, floor=python),
    ]


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
    note = (
        "No object is kept of a subagent that is closed but in caches of fixed size: the garbage "
        "collector counts none more after two thousand. What is seen is memory that Python has "
        "freed and not given back: a plateau of about 10 MB, more or less from run to run."
    )
    return [Figure("steward memory", grown, f"KB for each of {many:,} closed subagents", 1, note)]


async def _grow(work: retinue.Task, count: int) -> None:
    while count > 0:
        batch = min(count, 500)
        await work.run([retinue.Brief(argv=ECHO, retries=0)] * batch, queue=True)
        count -= batch
