"""What all campaigns share: an order, rows of a table, and violations."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class Order:
    """Size of a campaign: it ends after so many rounds, or at `end`, whichever is first."""

    rounds: int
    seed: int
    end: float  # monotonic time
    folder: Path  # for roots and for inputs that failed
    whole: bool = False  # every case there is once, instead of a number of rounds
    part: int = 0  # which of the orders that share the work this is
    parts: int = 1

    def iter_rounds(self, most: int | None = None) -> Iterator[int]:
        """Yield the numbers of rounds while there is time."""
        for number in range(self.rounds if most is None else min(most, self.rounds)):
            if time.monotonic() >= self.end:
                return
            yield number

    def take_share(self, cases: Sequence[Item]) -> Sequence[Item]:
        """Return those that this part of the work has; together the parts have all."""
        return cases[self.part :: self.parts]


@dataclass(kw_only=True)
class Row:
    """One line of a campaign's table."""

    case: str
    tried: int = 0
    violations: list[str] = field(default_factory=list)
    figures: str = ""
    counts: Counter[str] = field(default_factory=Counter)  # by what was counted
    peaks: dict[str, float] = field(default_factory=dict)  # by a text with a place for the number

    def note(self, violation: str) -> None:
        """Record a violation, and show it at once: a campaign may run for hours."""
        self.violations.append(violation)
        print(f"violation in {self.case}: {violation}", file=sys.stderr, flush=True)

    def add(self, other: Row) -> None:
        """Add what another part of the same campaign found; figures in words are the first's."""
        self.tried += other.tried
        self.violations += other.violations
        self.counts += other.counts
        for name, peak in other.peaks.items():
            self.peaks[name] = max(peak, self.peaks.get(name, 0.0))

    def to_cells(self) -> list[str]:
        counts = [f"{number:,} {name}" for name, number in self.counts.items()]
        peaks = [name.format(peak) for name, peak in self.peaks.items()]
        told = ", ".join(filter(None, [self.figures, *counts, *peaks]))
        return [self.case, f"{self.tried:,}", str(len(self.violations)), told]


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """A way to attack what is promised; `rounds` is its default size."""

    promise: str
    rounds: int
    unit: str  # what one round is
    run: Callable[[Order], list[Row]]
    left_out: str = ""  # what the campaign does not try


def split(order: Order, workers: int) -> list[Order]:
    """Return orders for so many processes; each has its own seed and folder."""
    if workers < 2:
        return [order]
    parts = []
    for number in range(workers):
        folder = order.folder / f"worker-{number}"
        folder.mkdir()
        rounds = order.rounds // workers + (number < order.rounds % workers)
        seed = order.seed + number
        part = replace(order, rounds=rounds, seed=seed, folder=folder, part=number, parts=workers)
        parts.append(part)
    return parts


def run_parts(run: Callable[[Order], list[Row]], orders: list[Order]) -> list[Row]:
    """Run the parts at once and return one table."""
    if len(orders) == 1:
        return run(orders[0])
    with ProcessPoolExecutor(len(orders)) as pool:  # whose workers may have children
        first, *others = pool.map(run, orders)
    for rows in others:
        for total, row in zip(first, rows, strict=True):
            total.add(row)
    return first
