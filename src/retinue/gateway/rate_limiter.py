"""Rate limiter for one provider: unlimited until it refuses, then back-off and fewer at once."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from retinue.clock import read_monotonic_ms

FIRST_PAUSE_MS = 500
LONGEST_PAUSE_MS = 60_000
MOST_DOUBLINGS = 7

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class RateLimitState:
    """Concurrency limit and pause of one provider."""

    not_before_ms: int = 0
    strikes: int = 0  # refusals since the last answer
    width: int | None = None  # concurrent requests; None until the first refusal
    in_flight: int = 0

    def can_send(self, now_ms: int) -> bool:
        free = self.width is None or self.in_flight < self.width
        return free and now_ms >= self.not_before_ms

    def wait_ms(self, now_ms: int) -> int:
        """Return the rest of the pause; 0 if only the concurrency limit, or nothing, blocks."""
        return max(0, self.not_before_ms - now_ms)

    def record_sent(self) -> RateLimitState:
        return replace(self, in_flight=self.in_flight + 1)

    def record_answer(self) -> RateLimitState:
        """End a request that was answered: clear the strikes and allow one more at once."""
        width = None if self.width is None else self.width + 1
        return replace(self, in_flight=self.in_flight - 1, strikes=0, width=width)

    def record_drop(self) -> RateLimitState:
        """End a request that says nothing about the provider's load."""
        return replace(self, in_flight=self.in_flight - 1)

    def record_refusal(
        self, now_ms: int, *, retry_after_ms: int | None, jitter: float
    ) -> RateLimitState:
        """End a refused request: pause all requests, longer each time, and halve the limit.

        Refusals that arrive during a pause belong to requests sent before it. They can extend the
        pause, but do not count as further strikes.

        Args:
            jitter: random number from 0 to 1.
        """
        left = self.in_flight - 1
        if now_ms < self.not_before_ms:
            later = now_ms + (retry_after_ms or 0)
            until = min(max(self.not_before_ms, later), now_ms + LONGEST_PAUSE_MS)
            return replace(self, in_flight=left, not_before_ms=until)
        # Exponential back-off with jitter, so that several stewards do not retry in step.
        pause = FIRST_PAUSE_MS * 2 ** min(self.strikes, MOST_DOUBLINGS)
        pause = int(min(pause, LONGEST_PAUSE_MS) * (0.5 + jitter / 2))
        # Never retry before the time that the provider asked for, up to the longest pause.
        if retry_after_ms is not None:
            asked = min(retry_after_ms, LONGEST_PAUSE_MS)
            pause = max(pause, int(asked * (1 + jitter / 10)))
        return RateLimitState(
            not_before_ms=now_ms + pause,
            strikes=self.strikes + 1,
            width=max(1, self.in_flight // 2),
            in_flight=left,
        )


class FairQueue(Generic[Item]):
    """Round-robin queue: each owner gets a turn before any owner gets a second one."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, deque[Item]] = {}

    def __len__(self) -> int:
        return sum(len(items) for items in self._waiting.values())

    def push(self, owner: Hashable, item: Item) -> None:
        self._waiting.setdefault(owner, deque()).append(item)

    def pop(self) -> Item | None:
        """Return the oldest item of the first owner, and move that owner to the end."""
        if not self._waiting:
            return None
        owner = next(iter(self._waiting))
        items = self._waiting.pop(owner)
        item = items.popleft()
        if items:
            self._waiting[owner] = items
        return item

    def remove(self, owner: Hashable, item: Item) -> None:
        """Remove the item if it is in the queue."""
        items = self._waiting.get(owner)
        if items and item in items:
            items.remove(item)
            if not items:
                del self._waiting[owner]


class RateLimiter:
    """Rate limiter of one provider.

    Each `enter` must be followed by exactly one `record_answer`, `record_drop` or
    `record_refusal`.
    """

    def __init__(self, random_number: Callable[[], float] = random.random) -> None:
        self._state = RateLimitState()
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue()
        self._random = random_number
        self._timer: asyncio.TimerHandle | None = None

    @property
    def pause_seconds(self) -> float:
        """Rest of the current pause; 0 without one."""
        return self._state.wait_ms(read_monotonic_ms()) / 1000

    @property
    def waiting(self) -> int:
        return len(self._queue)

    async def enter(self, owner: Hashable) -> None:
        """Wait until the owner may send a request."""
        # A request may go at once only if none waits; otherwise it would jump the queue.
        if not self._queue and self._state.can_send(read_monotonic_ms()):
            self._state = self._state.record_sent()
            return
        turn = asyncio.get_running_loop().create_future()
        self._queue.push(owner, turn)
        self._pump()
        try:
            await turn
        except asyncio.CancelledError:
            # The turn may have been granted just before the cancellation. Give it back.
            if turn.done() and not turn.cancelled():
                self.record_drop()
            self._queue.remove(owner, turn)
            raise

    def record_answer(self) -> None:
        self._state = self._state.record_answer()
        self._pump()

    def record_drop(self) -> None:
        self._state = self._state.record_drop()
        self._pump()

    def record_refusal(self, retry_after_ms: int | None) -> bool:
        """Record a refusal; return whether it begins a new pause."""
        before = self._state.strikes
        self._state = self._state.record_refusal(
            read_monotonic_ms(), retry_after_ms=retry_after_ms, jitter=self._random()
        )
        self._pump()
        return self._state.strikes != before

    def _pump(self) -> None:
        """Grant turns while the limit allows, and schedule the next try after a pause."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._queue and self._state.can_send(read_monotonic_ms()):
            turn = self._queue.pop()
            if turn is not None and not turn.done():
                self._state = self._state.record_sent()
                turn.set_result(None)
        if self._queue and (pause := self.pause_seconds):
            self._timer = asyncio.get_running_loop().call_later(pause, self._pump)
