"""How a provider that says "too much" is left alone, by everybody and for long enough.

Time is an argument, and so is chance: the same history gives the same pauses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

FIRST_PAUSE_MS = 500
LONGEST_PAUSE_MS = 60_000
MOST_DOUBLINGS = 7

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How many requests a provider gets at once, and from when on it gets any."""

    not_before_ms: int = 0
    strikes: int = 0  # refusals since it last answered
    width: int | None = None  # requests at once; None while it never refused
    in_flight: int = 0

    def may_go(self, now_ms: int) -> bool:
        free = self.width is None or self.in_flight < self.width
        return free and now_ms >= self.not_before_ms

    def wait_ms(self, now_ms: int) -> int:
        """How long nobody may go; 0 when only others stand in the way, or nobody."""
        return max(0, self.not_before_ms - now_ms)

    def sent(self) -> Pace:
        return replace(self, in_flight=self.in_flight + 1)

    def answered(self) -> Pace:
        """It took a request: one more may go beside the others."""
        width = None if self.width is None else self.width + 1
        return replace(self, in_flight=self.in_flight - 1, strikes=0, width=width)

    def dropped(self) -> Pace:
        """A request is over, and nothing was learnt from it."""
        return replace(self, in_flight=self.in_flight - 1)

    def refused(self, now_ms: int, *, retry_after_ms: int | None, jitter: float) -> Pace:
        """It said "too much": a pause for all, longer each time, then half as many at once.

        Several refusals of requests that were under way together are one: they
        do not add up.

        Args:
            jitter: chance, from 0 to 1.
        """
        left = self.in_flight - 1
        if now_ms < self.not_before_ms:
            later = now_ms + (retry_after_ms or 0)
            until = min(max(self.not_before_ms, later), now_ms + LONGEST_PAUSE_MS)
            return replace(self, in_flight=left, not_before_ms=until)
        pause = FIRST_PAUSE_MS * 2 ** min(self.strikes, MOST_DOUBLINGS)
        pause = int(min(pause, LONGEST_PAUSE_MS) * (0.5 + jitter / 2))
        if retry_after_ms is not None:
            asked = min(retry_after_ms, LONGEST_PAUSE_MS)
            pause = max(pause, int(asked * (1 + jitter / 10)))
        return Pace(
            not_before_ms=now_ms + pause,
            strikes=self.strikes + 1,
            width=max(1, self.in_flight // 2),
            in_flight=left,
        )


class FairQueue(Generic[Item]):
    """Whoever waits for others gets a turn before anyone gets a second one."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, deque[Item]] = {}

    def __len__(self) -> int:
        return sum(len(items) for items in self._waiting.values())

    def push(self, owner: Hashable, item: Item) -> None:
        self._waiting.setdefault(owner, deque()).append(item)

    def pop(self) -> Item | None:
        """The oldest item of the owner who has waited longest; his others go to the end."""
        if not self._waiting:
            return None
        owner = next(iter(self._waiting))
        items = self._waiting.pop(owner)
        item = items.popleft()
        if items:
            self._waiting[owner] = items
        return item

    def remove(self, owner: Hashable, item: Item) -> None:
        """The item waits no more, if it did."""
        items = self._waiting.get(owner)
        if items and item in items:
            items.remove(item)
            if not items:
                del self._waiting[owner]
