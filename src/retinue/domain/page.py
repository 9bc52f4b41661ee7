"""What someone who watches wants to see, and a page of it."""

from __future__ import annotations

from dataclasses import dataclass

from retinue.domain.budget import Spending
from retinue.domain.event import Recorded


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which events are wanted; what is empty restricts nothing."""

    kinds: tuple[str, ...] = ()  # patterns of types
    subagent: str = ""
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Matches:
    """Events that match, newest first, and from where a search goes on; 0 at the beginning."""

    events: list[Recorded]
    before: int


@dataclass(frozen=True, kw_only=True)
class Paid:
    """One request to a model, as it was booked."""

    ts: str
    attempt: int
    provider: str
    model: str
    status: str
    spending: Spending
