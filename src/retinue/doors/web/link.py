"""The page's one connection to the steward: made when it is needed, let go when it is not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from retinue.domain.errors import StewardUnavailable
from retinue.steward.client import dial, reach
from retinue.steward.remote import Remote, connected

IDLE_SECONDS = 20.0  # with nobody looking, the steward may end


class Link:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._remote: Remote | None = None
        self._making = asyncio.Lock()
        self._asked = 0  # requests that are not answered yet
        self._idle: asyncio.TimerHandle | None = None

    async def call(self, verb: str, *, start: bool = True, **params: Any) -> Any:
        """The verb's answer. Whoever only watches starts no steward.

        Raises:
            RetinueError: what the steward said, or why it cannot be asked.
        """
        self._asked += 1
        try:
            remote = await self._connected(start)
            return await remote.call(verb, **params)
        finally:
            self._asked -= 1
            self._consider_idle()

    async def close(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        remote, self._remote = self._remote, None
        if remote is not None:
            await remote.close()

    async def _connected(self, start: bool) -> Remote:
        async with self._making:
            if self._remote is None or self._remote.lost:
                await self.close()
                self._remote = await self._connect(start)
            return self._remote

    async def _connect(self, start: bool) -> Remote:
        connection = await asyncio.to_thread(reach if start else dial, self.root)
        if connection is None:
            raise StewardUnavailable(
                "no steward runs here", code="no_steward", hint="reload the page to start one"
            )
        return await connected(sock=connection)

    def _consider_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if not self._asked:
            self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._let_go)

    def _let_go(self) -> None:
        remote, self._remote = self._remote, None
        if remote is not None:
            remote.let_go()
