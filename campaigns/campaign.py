"""What all campaigns share: an order, rows of a table, and violations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
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
