"""Many subagents in one root: descriptors, threads, memory and latency return to their baseline."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import NamedTuple

from campaign import Campaign, Order, Row
from retinue.core.errors import RetinueError
from support.reader import Reader
from support.roots import Root, command, held
from support.traces import holdings

BATCH = 20  # subagents of one call
SAMPLES = 15
WARM_UP = 10  # batches before the baseline
GROWTH_KB = 16 * 1024
DESCRIPTORS = 3
SLOWER = 2.0  # times the baseline, and at least SLOWER_MS more
SLOWER_MS = 5.0


class Sample(NamedTuple):
    """State of a steward."""

    descriptors: int
    threads: int
    memory_kb: int
    list_ms: float
    spawn_ms: float


def take_sample(root: Root, task: str) -> Sample:
    listed: list[float] = []
    spawned: list[float] = []
    for _ in range(SAMPLES):
        began = time.perf_counter()
        root.call("subagent.list", task=task)
        listed.append(time.perf_counter() - began)
        began = time.perf_counter()
        root.run(task, command("true"))
        spawned.append(time.perf_counter() - began)
    descriptors, threads, _ = holdings(root.pid)
    return Sample(
        descriptors,
        threads,
        _read_memory_kb(root.pid),
        statistics.median(listed) * 1000,
        statistics.median(spawned) * 1000,
    )


def run(order: Order) -> list[Row]:
    """Run batches of subagents; stop the steward once, half-way, as an upgrade does."""
    work = Row(case="subagents")
    first = Row(case="steward before the upgrade")
    second = Row(case="steward after the upgrade")
    size = Row(case="files")
    batches = max(2 * WARM_UP + 2, order.rounds // BATCH)
    with held(order.folder / ".retinue") as root:
        task = root.create_task(limit=BATCH)
        for row, count in ((first, batches // 2), (second, batches - batches // 2)):
            _run_batches(root, task, WARM_UP, work, order)
            before = take_sample(root, task)
            _run_batches(root, task, count - WARM_UP, work, order)
            after = take_sample(root, task)
            work.tried += 2 * SAMPLES
            _compare(row, before, after)
            root.stop()
        try:
            Reader(root.path).check(finished=True)
            root.sound()
        except (AssertionError, RetinueError) as error:
            work.note(str(error)[:500])
        root.stop()
        size.tried = 1
        size.figures = _describe_sizes(root.path, task, work.tried)
    return [work, first, second, size]


def _run_batches(root: Root, task: str, count: int, row: Row, order: Order) -> None:
    for _ in range(count):
        if time.monotonic() >= order.end:
            return
        try:
            results = root.run(task, *[command("echo", "ok")] * BATCH)
        except RetinueError as error:
            row.note(str(error)[:300])
            return
        row.tried += len(results)
        wrong = [result for result in results if result["answer"] != "ok"]
        row.violations += [f"{each['subagent_id']}: {each['status']}" for each in wrong]


def _compare(row: Row, before: Sample, after: Sample) -> None:
    row.tried = 1
    row.figures = (
        f"descriptors {before.descriptors} to {after.descriptors}, threads {before.threads} to "
        f"{after.threads}, memory {before.memory_kb // 1024} to {after.memory_kb // 1024} MB, "
        f"list {before.list_ms:.1f} to {after.list_ms:.1f} ms, spawn {before.spawn_ms:.1f} to "
        f"{after.spawn_ms:.1f} ms"
    )
    for name in ("descriptors", "threads"):
        if abs(getattr(after, name) - getattr(before, name)) > DESCRIPTORS:
            row.note(f"{name} did not return to their baseline")
    if after.memory_kb - before.memory_kb > GROWTH_KB:
        row.note("memory did not return to its baseline")
    for name in ("list_ms", "spawn_ms"):
        then, now = getattr(before, name), getattr(after, name)
        if now > then * SLOWER and now > then + SLOWER_MS:
            row.note(f"{name} did not return to its baseline")


def _describe_sizes(root: Path, task: str, subagents: int) -> str:
    database = (root / "retinue.db").stat().st_size
    log = (root / "tasks" / task / "events.jsonl").stat().st_size
    return (
        f"{database / subagents / 1024:.1f} KB of database and {log / subagents / 1024:.1f} KB of "
        "log for each subagent"
    )


def _read_memory_kb(pid: int) -> int:
    lines = Path("/proc", str(pid), "smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


CAMPAIGN = Campaign(
    promise="A steward that runs many subagents needs no more descriptors, threads, memory or time "
    "at the end than at the beginning.",
    rounds=1000,
    unit="subagent",
    run=run,
    left_out="teams and plans; the upgrade is a stop and a start of the same version",
)
