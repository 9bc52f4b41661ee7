"""The page's one connection to the steward: made when it is needed, let go when it is not."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

from retinue.domain.errors import StewardUnavailable
from retinue.steward.client import dial, reach
from retinue.steward.link import Way
from retinue.steward.remote import Remote, connected

IDLE_SECONDS = 20.0  # with nobody looking, the steward may end


class Link(Way):
    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root
        self._asked = 0  # requests that are not answered yet
        self._idle: asyncio.TimerHandle | None = None

    async def call(self, verb: str, *, start: bool = True, **params: Any) -> Any:
        """The verb's answer. Whoever only watches starts no steward.

        Raises:
            RetinueError: what the steward said, or why it cannot be asked.
        """
        self._asked += 1
        try:
            remote = await self.reached(partial(self._connect, start))
            return await remote.call(verb, **params)
        finally:
            self._asked -= 1
            self._consider_idle()

    def close(self) -> None:
        super().close()
        self._keep()

    async def _connect(self, start: bool) -> Remote:
        connection = await asyncio.to_thread(reach if start else dial, self.root)
        if connection is None:
            raise StewardUnavailable(
                "no steward runs here", code="no_steward", hint="reload the page to start one"
            )
        return await connected(sock=connection)

    def _consider_idle(self) -> None:
        self._keep()
        if not self._asked:
            self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self.close)

    def _keep(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
