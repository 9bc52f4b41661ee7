"""Everybody's turn with a provider: at once while it answers, one by one after it refused."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Hashable

from retinue.clock import monotonic_ms
from retinue.domain.cooldown import FairQueue, Pace


class Turnstile:
    """One provider's. Whoever entered must say how it went."""

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._pace = Pace()
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue()
        self._chance = chance
        self._timer: asyncio.TimerHandle | None = None

    @property
    def pause_seconds(self) -> float:
        """How long nobody may go, from now on."""
        return self._pace.wait_ms(monotonic_ms()) / 1000

    @property
    def waiting(self) -> int:
        return len(self._queue)

    async def enter(self, owner: Hashable) -> None:
        """It is this one's turn."""
        if not self._queue and self._pace.may_go(monotonic_ms()):
            self._pace = self._pace.sent()
            return
        turn = asyncio.get_running_loop().create_future()
        self._queue.push(owner, turn)
        self._pump()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.dropped()
            self._queue.remove(owner, turn)
            raise

    def answered(self) -> None:
        self._pace = self._pace.answered()
        self._pump()

    def dropped(self) -> None:
        self._pace = self._pace.dropped()
        self._pump()

    def refused(self, retry_after_ms: int | None) -> bool:
        """Whether a pause begins with this; none does when one was on already."""
        before = self._pace.strikes
        self._pace = self._pace.refused(
            monotonic_ms(), retry_after_ms=retry_after_ms, jitter=self._chance()
        )
        self._pump()
        return self._pace.strikes != before

    def _pump(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._queue and self._pace.may_go(monotonic_ms()):
            turn = self._queue.pop()
            if turn is not None and not turn.done():
                self._pace = self._pace.sent()
                turn.set_result(None)
        if self._queue and (pause := self.pause_seconds):
            self._timer = asyncio.get_running_loop().call_later(pause, self._pump)
