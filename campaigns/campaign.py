"""What all campaigns share: an order, rows of a table, and violations."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Order:
    """Size of a campaign: it ends after so many rounds, or at `end`, whichever is first."""

    rounds: int
    seed: int
    end: float  # monotonic time
    folder: Path  # for roots and for inputs that failed

    def iter_rounds(self, most: int | None = None) -> Iterator[int]:
        """Yield the numbers of rounds while there is time."""
        for number in range(self.rounds if most is None else min(most, self.rounds)):
            if time.monotonic() >= self.end:
                return
            yield number


@dataclass(kw_only=True)
class Row:
    """One line of a campaign's table."""

    case: str
    tried: int = 0
    violations: list[str] = field(default_factory=list)
    figures: str = ""

    def note(self, violation: str) -> None:
        """Record a violation, and show it at once: a campaign may run for hours."""
        self.violations.append(violation)
        print(f"violation in {self.case}: {violation}", file=sys.stderr, flush=True)

    def to_cells(self) -> list[str]:
        return [self.case, f"{self.tried:,}", str(len(self.violations)), self.figures]


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
        parts.append(replace(order, rounds=rounds, seed=order.seed + number, folder=folder))
    return parts


def run_parts(run: Callable[[Order], list[Row]], orders: list[Order]) -> list[Row]:
    """Run the parts at once and return one table; figures that are no counts are the first's."""
    if len(orders) == 1:
        return run(orders[0])
    with multiprocessing.Pool(len(orders)) as pool:
        first, *others = pool.map(run, orders)
    for rows in others:
        for total, row in zip(first, rows, strict=True):
            total.tried += row.tried
            total.violations += row.violations
    return first
