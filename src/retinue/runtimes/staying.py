"""An attempt whose init stays: it says when it is free, and waits for another order."""

from __future__ import annotations

import asyncio
from pathlib import Path

from retinue.child.control import EXECUTED, FREE, GO
from retinue.runtimes.children import ProcessChild, read_record
from retinue.runtimes.gate import LAUNCH_SECONDS, is_up, require_up
from retinue.runtimes.inits import Init, Inits

OVER = (EXECUTED + FREE).encode()


class StayingChild(ProcessChild):
    """Its end is its init's word, which comes when nothing of the attempt is left; where that
    does not come, it is the end of its init.
    """

    def __init__(self, init: Init, folder: Path, inits: Inits, early: bytes) -> None:
        super().__init__(init.identity, init.pidfd, folder)
        self._init, self._inits = init, inits
        self._held = True
        self._said = early
        self._up: asyncio.Future[None] | None = None
        self._goes = self._free = False
        init.attend(self._hear)
        inits.lend(init)

    async def _open(self) -> None:
        if not self._goes:
            self._up = asyncio.get_running_loop().create_future()
            async with asyncio.timeout(LAUNCH_SECONDS):
                await self._init.send(GO)
                await self._up
        require_up(self._said)

    def stop(self) -> None:
        self._init.outdated = True  # what is sent too late for this one is not for the next
        super().stop()

    def kill(self) -> None:
        self._init.outdated = True
        super().kill()

    def let_go(self) -> None:
        """Its init waits for another order, or is going."""
        if self._free:
            self._free = False
            self._inits.add(self._init)

    def _hear(self, said: bytes) -> None:
        self._said += said
        if not said and self._free:  # before anybody let it go
            self._free = False
            self._init.end()
        elif not said:
            self._watch_it_go()
        elif self._said == OVER:
            self._believe()
        answered = self._goes or is_up(self._said)
        if answered and self._up is not None and not self._up.done():
            self._up.set_result(None)

    def _believe(self) -> None:
        try:
            self._settle(read_record(self._folder))
            self._free = True
        except OSError:  # no descriptor is left, say: what it holds is given back
            self._init.hang_up()

    def _watch_it_go(self) -> None:
        """Its init is going, and the last that will be known is its end."""
        self._goes = True
        if self._waiters:
            self._watch(asyncio.get_running_loop())

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._goes:
            super()._watch(loop)

    def _look_away(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._goes:
            super()._look_away(loop)
