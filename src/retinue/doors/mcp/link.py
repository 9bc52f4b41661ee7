"""The way to the root's steward, made again whenever it was lost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from retinue.domain.errors import StewardUnavailable
from retinue.steward.client import reach, require_root
from retinue.steward.remote import TOLD_AGAIN, Remote, connected

TRIES = 3


class Link:
    """Verbs over one connection, side by side. A steward is started where there is none."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._remote: Remote | None = None
        self._connecting = asyncio.Lock()

    async def call(self, verb: str, **params: Any) -> Any:
        """The verb's answer; asked again of the next steward if the first ended meanwhile.

        Nothing is done twice: a spawn has its key, and for the rest a repetition says so.

        Raises:
            RetinueError: what the steward said, or why there is none.
        """
        require_root(self._root, verb)
        for left in reversed(range(TRIES)):
            remote = await self._reached()
            try:
                return await remote.call(verb, **params)
            except StewardUnavailable as error:
                if error.code != "steward_lost" or not left:
                    raise
                await self._drop(remote)
            if verb in TOLD_AGAIN:
                params["again"] = True
        raise AssertionError("the last try returns or raises")

    async def close(self) -> None:
        """The steward sees that nobody is here any more: what was blocked on is cancelled."""
        if self._remote is not None:
            await self._remote.close()
            self._remote = None

    async def _reached(self) -> Remote:
        async with self._connecting:
            if self._remote is None or self._remote.lost:
                connection = await asyncio.to_thread(reach, self._root)
                self._remote = await connected(sock=connection)
            return self._remote

    async def _drop(self, remote: Remote) -> None:
        await remote.close()
        if self._remote is remote:
            self._remote = None
