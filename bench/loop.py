"""The loop that people write: one client that spawns and waits, with one or with many under way."""

from __future__ import annotations

import bare
import retinue
from core import ECHO, stewarded, task
from measure import PYTHON, Act, Figure, Sample, in_turns, median_ms, process, sample

AT_ONCE = 32
MANY = (
    "One after the other, the client's `spawn` waits until its child is up: its answer says "
    "`running`, and that is true. Until then a subagent is admitted and started in two durable "
    "commits, and its init has run the command; meanwhile the ends of others wait for the steward, "
    "each with a commit. {kept:.0f} of them a second is what the barest program reached in this "
    "run that keeps as much, also one after the other. A call of `run` with all of them does not "
    "wait in between (see `throughput`)."
)
ONE = (
    "Three calls instead of the one that `spawn` measures, and of {python:.1f} ms that an "
    "interpreter takes here, {kept:.1f} are what the barest program takes that keeps as much."
)


async def loop(count: int, turns: int, rounds: int) -> list[Figure]:
    """Spawn and wait_any in a loop, 32 under way; and spawn, wait_any, result, one at a time.

    Args:
        count: no-op subagents of one loop.
        turns: of the loop and its floor.
        rounds: of one at a time, and its floors.
    """
    async with stewarded() as opened:
        many, single = await task(opened, "inherited", AT_ONCE), await task(opened, "inherited")
        with bare.kept(ECHO) as ask:

            async def kept() -> None:
                ask()

            async def kept_many() -> None:
                for _ in range(count):
                    ask()

            loops: dict[str, Act] = {"loop": lambda: _spawn_and_wait(many, count)}
            taken = await in_turns(turns, loops | {"kept": kept_many})
            acts: dict[str, Act] = {
                "python": lambda: process(PYTHON, "-I", "-S", "-c", "pass"),
                "kept": kept,
                "one": lambda: _spawn_and_ask(single),
            }
            of = {
                name: sample(name, seconds)
                for name, seconds in (await in_turns(rounds, acts, at_once=10)).items()
            }
    rate, bound = (count / (median_ms(taken[name]) / 1000) for name in ("loop", "kept"))
    ours, python = of["one"], of["python"]
    return [
        Figure(
            "loop",
            rate,
            f"a second by one client, spawn and wait_any, {AT_ONCE} under way",
            250,
            MANY.format(kept=bound),
            at_least=True,
            ours=Sample(f"{count} in a loop", rate, unit="/s"),
            floor=Sample("kept, one at a time", bound, unit="/s"),
        ),
        Figure(
            "loop, one",
            ours.median / python.median,
            "x python -I -S -c pass, for spawn, wait_any and result",
            1.2,
            ONE.format(python=python.median, kept=of["kept"].median),
            ours=ours,
            floor=python,
        ),
    ]


async def _spawn_and_wait(work: retinue.Task, count: int) -> None:
    """Spawn so many, at most `AT_ONCE` at a time; wait for one wherever there is no room."""
    under_way = 0
    for _ in range(count):
        if under_way == AT_ONCE:
            await _wait(work)
            under_way -= 1
        await work.spawn([retinue.Brief(argv=ECHO, retries=0)])
        under_way += 1
    for _ in range(under_way):
        await _wait(work)


async def _wait(work: retinue.Task) -> str:
    settled = await work.wait_any(30)
    assert settled.status == "completed", settled
    return settled.id


async def _spawn_and_ask(work: retinue.Task) -> None:
    (spawned,) = await work.spawn([retinue.Brief(argv=ECHO, retries=0)])
    assert await _wait(work) == spawned.id
    result = await work.result(spawned.id)
    assert result.answer == "ok", result
