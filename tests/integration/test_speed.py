"""Speed that only a broken design loses: several times what the benchmarks ask for.

Measured against an interpreter's start in turns, so that a busy machine slows both.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import retinue
from retinue import Brief, Task
from support.roots import CONFIG, held

PYTHON = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
SPAWN_MOST = 3 * 1.2  # x the start of an interpreter that does nothing
WAKE_MOST = 4 * 0.6  # 5 ms where that start takes 9
BATCH, BATCH_MOST = 64, 3 * 0.6  # each, of 200 a second


def interpreter() -> float:
    began = time.perf_counter()
    os.waitpid(os.posix_spawn(PYTHON, [PYTHON, "-I", "-S", "-c", "pass"], {}), 0)
    return time.perf_counter() - began


def ratio(path: Path, act: Callable[[Task], Awaitable[float]], rounds: int = 12) -> float:
    """How much longer something took than an interpreter's start, both when least disturbed."""

    async def measure() -> float:
        taken: dict[str, list[float]] = {"ours": [], "floor": []}
        async with asyncio.timeout(60), retinue.connect(path) as opened:
            task = await opened.create_task(title="speed", config=CONFIG.format(limit=32))
            await act(task)
            for _ in range(rounds):
                taken["floor"].append(interpreter())
                taken["ours"].append(await act(task))
        found = min(taken["ours"]) / min(taken["floor"])
        print(f"{found:.2f} x an interpreter's start")
        return found

    with held(path):
        return asyncio.run(measure())


def test_a_steward_starts_without_importing_the_schemas() -> None:
    slow = ("pydantic", "ruamel.yaml", "aiohttp", "http.client", "retinue.store.rebuild")
    program = (
        "import sys, importlib; from retinue.steward.__main__ import IMPORTED_LATE; "
        f"loaded = lambda: [name for name in {slow} if name in sys.modules]; print(loaded()); "
        "[importlib.import_module(name) for name in IMPORTED_LATE]; print(loaded())"
    )
    said = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert said.splitlines() == ["[]", "['pydantic', 'ruamel.yaml']"]


def test_a_command_that_does_nothing_is_spawned_and_recorded_in_a_few_starts(
    tmp_path: Path,
) -> None:
    async def spawn(task: Task) -> float:
        began = time.perf_counter()
        batch = await task.run([Brief(argv=["/bin/echo", "ok"], retries=0)])
        assert batch.success
        return time.perf_counter() - began

    assert ratio(tmp_path / ".retinue", spawn) < SPAWN_MOST


def test_a_wait_returns_as_soon_as_the_subagent_ends(tmp_path: Path) -> None:
    async def wake(task: Task) -> float:
        await task.spawn([Brief(argv=["/bin/sh", "-c", "sleep 0.02; exec date +%s.%N"], retries=0)])
        settled = await task.wait_any(30)
        woken = time.time()
        return woken - float((await task.result(settled.id)).answer or 0)

    assert ratio(tmp_path / ".retinue", wake) < WAKE_MOST


def test_many_at_once_keep_each_other_busy(tmp_path: Path) -> None:
    async def batch(task: Task) -> float:
        began = time.perf_counter()
        done = await task.run([Brief(argv=["/bin/echo", "ok"], retries=0)] * BATCH, queue=True)
        assert done.success
        return (time.perf_counter() - began) / BATCH

    assert ratio(tmp_path / ".retinue", batch, rounds=3) < BATCH_MOST
