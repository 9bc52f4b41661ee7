"""An attempt whose init goes with it: it says when nothing else is left, and is reaped later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from retinue.child.control import FREE
from retinue.runtimes.children import ProcessChild, read_record
from retinue.runtimes.gate import Gate
from retinue.runtimes.inits import Init, Inits


class LeavingChild(ProcessChild):
    """Its end is its init's word, which comes when nothing of the attempt is left but the boundary
    around it; that takes a while to be taken down. Where no word comes, it is the init's end.
    """

    def __init__(
        self, init: Init, folder: Path, inits: Inits, gate: Gate, then: Callable[[], None]
    ) -> None:
        super().__init__(init.identity, init.pidfd, folder, gate, then=then)
        self._init, self._inits = init, inits
        self._free = False

    def let_go(self) -> None:
        """Its init is going, and reaped then."""
        if self._free:
            self._free = False
            self._inits.see_off(self._init)

    async def _open(self) -> None:
        gate, self._gate = self._gate, None
        if gate is not None:
            said = await gate.open()
            self._init.attend(self._hear)
            self._hear(said)

    def _hear(self, said: bytes) -> None:
        if said == FREE.encode() and self._ending is None:
            with suppress(OSError):  # no descriptor is left, say: its init's end is heard of, too
                ending = read_record(self._folder)
                self._look_away(asyncio.get_running_loop())
                self._settle(ending)
                self._free = True

    def _conclude(self, loop: asyncio.AbstractEventLoop) -> None:
        self._init.hang_up()
        super()._conclude(loop)
