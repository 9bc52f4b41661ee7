"""Requests under way, on record already: a steward that is killed has not forgotten them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from retinue.domain.errors import StorageFailed

DELAY_SECONDS = 0.25  # what is over by then is written once, at its end


class Note:
    """One request's entry in the ledger, never far behind what has passed."""

    def __init__(self, write: Callable[[int], int]) -> None:
        self._write = write  # takes the entry's number, 0 for none, and gives the one it has now
        self._timer: asyncio.TimerHandle | None = None
        self.entry = 0

    def soon(self) -> None:
        """Something has passed: it will be on record, together with what follows at once."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(DELAY_SECONDS, self._now)

    def over(self) -> int:
        """Nothing more is written here; the entry's number."""
        if self._timer is not None:
            self._timer.cancel()
        return self.entry

    def _now(self) -> None:
        self._timer = None
        with suppress(StorageFailed):  # the end of the request tries again, and complains
            self.entry = self._write(self.entry)
