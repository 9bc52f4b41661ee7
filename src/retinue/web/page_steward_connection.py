"""The web server's connection to the steward: opened on demand, closed when idle."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

from retinue.client.async_client import Remote, connect_steward
from retinue.client.blocking_client import connect_if_running, connect_or_start
from retinue.client.reconnect import StewardConnector
from retinue.core.errors import StewardUnavailable

# After this time without requests the connection is closed, so that the steward may exit.
IDLE_SECONDS = 20.0


class StewardConnection(StewardConnector):
    def __init__(self, root: Path, *, idle_seconds: float = IDLE_SECONDS) -> None:
        super().__init__()
        self.root = root
        self.idle_seconds = idle_seconds
        # Pending requests
        self._asked = 0
        self._idle: asyncio.TimerHandle | None = None

    async def call(self, verb: str, *, start: bool = True, **params: Any) -> Any:
        """Call a verb and return its result.

        Args:
            start: whether to start a steward if none is running.

        Raises:
            RetinueError: the steward refused the request, or none could be reached.
        """
        self._asked += 1
        # A timer of an idle moment before must not end this request.
        self._keep()
        try:
            remote = await self.get_remote(partial(self._connect, start))
            return await remote.call(verb, **params)
        finally:
            self._asked -= 1
            self._schedule_close()

    def close(self) -> None:
        super().close()
        self._keep()

    async def _connect(self, start: bool) -> Remote:
        connection = await asyncio.to_thread(
            connect_or_start if start else connect_if_running, self.root
        )
        if connection is None:
            raise StewardUnavailable(
                "no steward is running", code="no_steward", hint="reload the page to start one"
            )
        return await connect_steward(sock=connection)

    def _schedule_close(self) -> None:
        self._keep()
        if not self._asked:
            self._idle = asyncio.get_running_loop().call_later(self.idle_seconds, self.close)

    def _keep(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
