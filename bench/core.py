"""The core's benchmarks: through a running steward, with real children."""

from __future__ import annotations

import asyncio
import os
import select
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import retinue
from measure import (
    PYTHON,
    Figure,
    bare,
    cpu_seconds,
    in_turns,
    median_ms,
    p99_ms,
    private_kb,
    resident_kb,
)

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
    with tempfile.TemporaryDirectory() as folder:
        async with retinue.connect(Path(folder) / ".retinue") as opened:
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


async def spawn(rounds: int) -> list[Figure]:
    """Spawn to result of a no-op command, durable, against a bare process and an interpreter."""
    async with stewarded() as opened:
        inherited, isolated = await task(opened, "inherited"), await task(opened, "isolated")

        async def one(of: retinue.Task) -> None:
            batch = await of.run([retinue.Brief(argv=ECHO, retries=0)])
            assert batch.success, batch.results[0].error

        taken = await in_turns(
            rounds,
            true=lambda: bare("/bin/true"),
            python=lambda: bare(PYTHON, "-I", "-S", "-c", "pass"),
            inherited=lambda: one(inherited),
            isolated=lambda: one(isolated),
        )
    ms = {name: median_ms(seconds) for name, seconds in taken.items()}
    tail = {f"{name}_p99_ms": p99_ms(seconds) for name, seconds in taken.items()}
    return [
        Figure("spawn", ms["inherited"] / ms["true"], "x /bin/true", 25, details=ms | tail),
        Figure("spawn", ms["inherited"] / ms["python"], "x python -I -S", 1.2),
        Figure("spawn isolated", ms["isolated"] - ms["inherited"], "ms more", 8),
    ]


async def throughput(children: int, at_once: int = 32) -> list[Figure]:
    async with stewarded() as opened:
        work = await task(opened, "inherited", at_once)
        began = time.perf_counter()
        briefs = [retinue.Brief(argv=ECHO, retries=0) for _ in range(children)]
        batch = await work.run(briefs, queue=True)
        seconds = time.perf_counter() - began
        assert batch.success
    rate = children / seconds
    return [Figure("throughput", 200 / rate, f"x of 200/s ({rate:.0f}/s)", 1)]


async def wake(rounds: int) -> list[Figure]:
    """From a child's exit to the return of wait-any in another process."""
    late: list[float] = []
    async with stewarded() as opened:
        work = await task(opened, "inherited")
        for _ in range(rounds):
            script = "sleep 0.05; exec date +%s.%N"
            (spawned,) = await work.spawn(
                [retinue.Brief(argv=["/bin/sh", "-c", script], retries=0)]
            )
            settled = await work.wait_any(10)
            woken = time.time()
            assert settled.id == spawned.id
            result = await work.result(settled.id)
            late.append(woken - float(result.answer or 0))
    return [
        Figure("wake", median_ms(late), "ms", 5, details={"p99_ms": p99_ms(late)}),
    ]


async def idle(children: int, seconds: float) -> list[Figure]:
    """What a steward with sleeping children does: nothing."""
    async with stewarded() as opened:
        work = await task(opened, "inherited", children)
        sleepers = [retinue.Brief(argv=["/bin/sleep", "600"], retries=0)] * children
        spawned = await work.spawn(sleepers)
        pid = (await opened.call("steward.status"))["pid"]
        began = cpu_seconds(pid)
        await asyncio.sleep(seconds)
        share = (cpu_seconds(pid) - began) / seconds * 100
        inits = [await _pid(opened, work.id, each.id) for each in spawned[:20]]
        private = sorted(private_kb(init) for init in inits)[len(inits) // 2] / 1024
    return [
        Figure("idle", share, f"% of a core, {children} children", 0.5),
        Figure("memory", private, "MB private per child", 3),
    ]


async def history(many: int) -> list[Figure]:
    """`list` with few and with many closed subagents; the steward's memory in between."""
    async with stewarded() as opened:
        few, lot = await task(opened, "inherited", 32), await task(opened, "inherited", 32)
        await few.run([retinue.Brief(argv=ECHO)] * 10)
        await _grow(lot, 500)
        pid = (await opened.call("steward.status"))["pid"]
        before = resident_kb(pid)
        await _grow(lot, many - 500)
        grown = (resident_kb(pid) - before) / max(1, many - 500)

        async def look(of: retinue.Task) -> None:
            await of.subagents()

        taken = await in_turns(50, few=lambda: look(few), many=lambda: look(lot))
    ratio = median_ms(taken["many"]) / median_ms(taken["few"])
    return [
        Figure("list", ratio, f"x of 10, with {many} closed", 3),
        Figure("steward memory", grown, "KB per closed subagent", 1),
    ]


async def _grow(work: retinue.Task, count: int) -> None:
    while count > 0:
        batch = min(count, 500)
        await work.run([retinue.Brief(argv=ECHO, retries=0)] * batch, queue=True)
        count -= batch


async def _pid(opened: retinue.Retinue, task_id: str, name: str) -> int:
    shown: Any = await opened.call("subagent.show", task=task_id, subagent=name)
    return int(shown["attempts"][-1]["pid"])
