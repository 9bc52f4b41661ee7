"""Many children at once: what they cost while they are silent, and how they are stopped."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

import bare
import retinue
from bare import SLEEP, TELL_TIME, TELL_TIME_AT_ONCE
from core import stewarded, task
from measure import PYTHON, Figure, Sample, cpu_seconds, p99_ms, private_kb, run_ns, sample

WAKE = (
    "No client is told of an end that could still be lost: its init records it, its result is "
    "written and committed durably, and only then does wait-any return. The barest program that "
    "does so took {kept:.1f} ms in this run, p99 {tail:.1f}. The rest is the steward's: it reads "
    "what a child left as a claim, judges it, tells its events and gives each to a consumer once. "
    "For a child that ends as soon as it was started, all of it takes {at_once:.1f} ms (`wake at "
    "once`). This one has slept for 50 ms first. No more is done for it; the other {more:.1f} ms "
    "are what processors take that have been idle, and whose caches other programs used meanwhile "
    "(see `spawn after a pause`). Waking the steward ahead, while the child's init still records "
    "its end, gained nothing; a log that is written after the answer, 0.1 ms."
)


async def sleepers(work: retinue.Task, count: int) -> list[str]:
    """So many children that do nothing until they are stopped."""
    names: list[str] = []
    while len(names) < count:
        some = min(count - len(names), 100)
        spawned = await work.spawn([retinue.Brief(argv=SLEEP, retries=0)] * some)
        names += [each.id for each in spawned]
    return names


async def wake(rounds: int, children: int) -> list[Figure]:
    """From a child's exit to the return of wait-any in another process, others being silent."""
    taken: dict[str, list[float]] = {"wait-any": [], "at once": [], "known": [], "kept": []}
    async with stewarded() as opened:
        work = await task(opened, "inherited", children + 1)
        await sleepers(work, children)
        with bare.kept(TELL_TIME) as ask:
            for _ in range(rounds + 1):
                taken["known"].append(bare.wake())
                told = float(ask())
                taken["kept"].append(time.time() - told)
                taken["wait-any"].append(await _woken_after(work, TELL_TIME))
                taken["at once"].append(await _woken_after(work, TELL_TIME_AT_ONCE))
    ours, at_once, known, kept = (sample(name, each[1:]) for name, each in taken.items())
    more = ours.median - at_once.median
    note = WAKE.format(kept=kept.median, tail=kept.p99, at_once=at_once.median, more=more)
    after = f"ms after a child's end, beside {children} silent ones"
    over = "x the least that keeps as much: files, rows, one durable commit"
    return [
        Figure("wake", ours.median, after, 3, note, ours=ours, floor=known),
        Figure("wake p99", p99_ms(taken["wait-any"][1:]), after, 10, note),
        Figure("wake at once", at_once.median, "ms after the end of a child that never slept"),
        Figure("wake, kept", ours.median / kept.median, over, ours=ours, floor=kept),
    ]


async def _woken_after(work: retinue.Task, argv: list[str]) -> float:
    """Seconds since the child's end, by its own clock, when wait-any returns."""
    (spawned,) = await work.spawn([retinue.Brief(argv=argv, retries=0)])
    settled = await work.wait_any(30)
    woken = time.time()
    assert settled.id == spawned.id
    return woken - float((await work.result(settled.id)).answer or 0)


async def cancel(rounds: int, counts: list[int]) -> list[Figure]:
    """Cancel to closed of children that end on SIGINT, one and many."""
    ours: list[float] = []
    floor: list[float] = []
    async with stewarded() as opened:
        work = await task(opened, "inherited")
        for _ in range(rounds + 1):
            floor.append(bare.interrupt_and_reap(1))
            (name,) = await sleepers(work, 1)
            began = time.perf_counter()
            await work.cancel(name)
            ours.append(time.perf_counter() - began)
            shown = await opened.call("subagent.show", task=work.id, subagent=name)
            assert shown["state"] == "closed", shown["state"]
    mine, least = sample("cancel to closed", ours[1:]), sample("SIGINT and reap", floor[1:])
    more = mine.median - least.median
    one = Figure("cancel", more, "ms more than a bare child's end", 10, ours=mine, floor=least)
    return [one, await _cancel_all(counts)]


async def _cancel_all(counts: list[int]) -> Figure:
    curve, took, least, used, left = [], 0.0, 0.0, 0.0, 0.0
    async with stewarded() as opened:
        pid = (await opened.call("steward.status"))["pid"]
        for count in counts:
            work = await task(opened, "inherited", count)
            await sleepers(work, count)
            least, left = bare.interrupt_and_reap(count), bare.record_ends(count)
            before, began = cpu_seconds(pid), time.perf_counter()
            ended = await opened.call("task.cancel", task=work.id, by="parent")
            took, used = time.perf_counter() - began, cpu_seconds(pid) - before
            assert len(ended["cancelled"]) == count
            curve.append((float(count), took * 1000))
    many = counts[-1]
    return Figure(
        "cancel many",
        took / least,
        f"x SIGINT and reap, {many:,} at once",
        3,
        ours=Sample(f"{many:,} cancelled", took * 1000),
        floor=Sample(f"{many:,} bare", least * 1000),
        details={
            "steward_cpu_ms": used * 1000,
            "each_ms": took / many * 1000,
            "bare_records_ms": left * 1000,
        },
        curve=curve,
        axes="children cancelled at once, ms",
        note=f"The floor is two system calls for each child, and records nothing. Cancelling a "
        f"subagent ends two processes (its command, and the first process that keeps its time "
        f"and records its end) and writes eight rows and four files. That alone, in a loop with "
        f"one commit for all, took {left * 1000:.0f} ms in this run, {left / least:.1f} x the "
        f"floor. The rest is the steward's: {used / many * 1000:.1f} ms of CPU for each, to read "
        f"and judge the files, to record the events and to release the subagent.",
    )


def wakeups(pid: int) -> int:
    """How often a process has gone to sleep by itself, once for each time it was woken."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt"))


async def idle(children: int, seconds: float) -> list[Figure]:
    """What a steward does whose children are silent: nothing."""
    async with stewarded() as opened:
        work = await task(opened, "inherited", children)
        names = await sleepers(work, children)
        pid = (await opened.call("steward.status"))["pid"]
        init = await _init_of(opened, work, names[0])
        await asyncio.sleep(1)  # what is put off for a moment is done
        ran, woken, init_woken = run_ns(pid), wakeups(pid), wakeups(init)
        await asyncio.sleep(seconds)
        share = (run_ns(pid) - ran) / seconds / 1e9 * 100
        woken, init_woken = wakeups(pid) - woken, wakeups(init) - init_woken
    silent = f"{children:,} silent children"
    details = {"steward_wakeups": woken, "wakeups_of_a_child": init_woken, "seconds": seconds}
    return [
        Figure("idle", share, f"% of a core, {silent}", 0.1, details=details),
        Figure("idle wake-ups", woken / seconds, f"each second, {silent}", 1),
    ]


async def memory(counts: list[int]) -> list[Figure]:
    """Private memory of what keeps a command, beside the command itself, as there are more."""
    curve = []
    async with stewarded() as opened:
        for count in counts:
            work = await task(opened, "inherited", count)
            names = await sleepers(work, count)
            chosen = names[:: max(1, count // 25)]
            inits = [await _init_of(opened, work, name) for name in chosen]
            curve.append((float(count), statistics.median(map(private_kb, inits)) / 1024))
            await opened.call("task.cancel", task=work.id, by="parent", kill=True)
    most = max(each for _, each in curve)
    return [
        Figure(
            "memory",
            most,
            f"MB private for each command, at {', '.join(f'{each:,}' for each in counts)}",
            4,
            ours=Sample("a command's init", most, unit="MB"),
            floor=Sample("python -I -S", _interpreter_mb(), unit="MB"),
            curve=curve,
            axes="children at once, MB for each",
        )
    ]


def _interpreter_mb() -> float:
    words = [PYTHON, "-I", "-S", "-c", "print(flush=True); input()"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        kb = private_kb(process.pid)
        process.communicate(b"\n")
    return kb / 1024


async def _init_of(opened: retinue.Retinue, work: retinue.Task, name: str) -> int:
    shown: Any = await opened.call("subagent.show", task=work.id, subagent=name)
    return int(shown["attempts"][-1]["pid"])
