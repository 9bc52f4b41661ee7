"""Measuring side by side: ours and its floor in turns, medians and ratios of the same run."""

from __future__ import annotations

import compileall
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import retinue

# The interpreter itself: a shim that chooses a version costs a hundred milliseconds.
PYTHON = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)

Act = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Sample:
    """What one side of a comparison took."""

    what: str
    median: float
    p99: float | None = None
    unit: str = "ms"


@dataclass(frozen=True)
class Figure:
    """One thing that was measured, against what it should be."""

    name: str
    value: float
    unit: str
    target: float | None = None
    note: str = ""  # why it is as it is; told where the target is missed
    details: Mapping[str, float] = field(default_factory=dict)
    at_least: bool = False  # whether the target is the least there should be, not the most
    ours: Sample | None = None
    floor: Sample | None = None  # of the same run, in turns with ours
    curve: Sequence[tuple[float, float]] = ()  # how it grows
    axes: str = ""  # of the curve, as "closed subagents, ms"

    @property
    def verdict(self) -> str:
        if self.target is None:
            return "-"
        met = self.value >= self.target if self.at_least else self.value <= self.target
        return "met" if met else "MISSED"


def guard() -> None:
    """The package is compiled, as it would be where it is installed.

    Raises: SystemExit where the measurement itself would be wrong.
    """
    if sys.dont_write_bytecode or os.environ.get("PYTHONDONTWRITEBYTECODE"):
        sys.exit("bench: unset PYTHONDONTWRITEBYTECODE, imports are up to 2.4 x slower with it")
    for program in (PYTHON, os.path.realpath(sys.executable)):
        if Path(program).read_bytes()[:4] != b"\x7fELF":
            sys.exit(f"bench: {program} is a shim, which adds 100 ms to every start; use a python")
    compileall.compile_dir(Path(retinue.__file__).parent, quiet=2)


def sample(what: str, seconds: Sequence[float]) -> Sample:
    return Sample(what, median_ms(seconds), p99_ms(seconds))


def run_bare(argv: list[str]) -> float:
    """Seconds for a bare spawn and wait."""
    began = time.perf_counter()
    pid = os.posix_spawn(argv[0], argv, {})
    os.waitpid(pid, 0)
    return time.perf_counter() - began


async def process(*argv: str) -> None:
    run_bare(list(argv))


async def in_turns(
    rounds: int, acts: Mapping[str, Act], *, at_once: int = 1, calm: bool = False
) -> dict[str, list[float]]:
    """Seconds of each act, in turns of so many, after a turn of each that does not count.

    With several in a turn, most of them find the caches of the processor as an act of the same
    kind left them. With `calm`, none has to wait for the disk to write what another one left to
    be written.
    """
    taken: dict[str, list[float]] = {name: [] for name in acts}
    for round_ in range(rounds // at_once + 1):
        for name, act in acts.items():
            for _ in range(at_once):
                if calm:
                    os.sync()
                began = time.perf_counter()
                await act()
                if round_:
                    taken[name].append(time.perf_counter() - began)
    return taken


def median_ms(seconds: Sequence[float]) -> float:
    return statistics.median(seconds) * 1000


def p99_ms(seconds: Sequence[float]) -> float:
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1000


def run_ns(pid: int) -> int:
    """Nanoseconds that a process has run; ticks of 10 ms would be too coarse."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def cpu_seconds(pid: int) -> float:
    """Processor time a process has used, its own and the kernel's for it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def private_kb(pid: int) -> int:
    """Memory that is the process's alone."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def resident_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
