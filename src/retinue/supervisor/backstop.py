"""The end of a child that does not come to its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

BACKSTOP_MS = 2_000  # what a child gets beyond its own deadline and graces before it is killed


class Backstop:
    """Kills once: at the earliest of the moments that were asked for, unless it is taken away."""

    def __init__(self, kill: Callable[[], None]) -> None:
        self._kill = kill
        self._timer: asyncio.TimerHandle | None = None

    def within(self, allowed_ms: int) -> None:
        """What it is for is over after this time and the backstop's own, or killed."""
        loop = asyncio.get_running_loop()
        due = loop.time() + (allowed_ms + BACKSTOP_MS) / 1000
        if self._timer is None or due < self._timer.when():
            self.take_away()
            self._timer = loop.call_at(due, self._kill)

    def take_away(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
