"""Whole collections of garbage, at moments when nobody waits for anything.

With a thousand children at work, one takes thirty milliseconds, and everybody else waits for it.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence

from retinue.domain.event import Recorded
from retinue.domain.ids import TaskId

QUIET_S = 0.4
ENOUGH = 10  # smaller ones make a whole one worth while
RARELY = 200  # of them make it necessary, where there is no such moment


class Tidying:
    """Hears of every change, and collects after the last of them."""

    def __init__(self) -> None:
        self._heard = False
        self._timer: asyncio.TimerHandle | None = None
        gc.set_threshold(*gc.get_threshold()[:2], RARELY)

    def __call__(self, task: TaskId, recorded: Sequence[Recorded]) -> None:
        self._heard = True
        if self._timer is None:
            self._wait()

    def _wait(self) -> None:
        self._heard = False
        self._timer = asyncio.get_running_loop().call_later(QUIET_S, self._look)

    def _look(self) -> None:
        if self._heard:
            self._wait()
        else:
            self._timer = None
            if gc.get_count()[2] >= ENOUGH:
                gc.collect()
