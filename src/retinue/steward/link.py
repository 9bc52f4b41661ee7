"""The way to a steward, made again whenever it was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from retinue.domain.errors import StewardUnavailable
from retinue.steward.remote import Remote

TOLD_AGAIN = ("parent.continue", "parent.cancel")  # asked twice, they say so: to be done once

Connect = Callable[[], Awaitable[Remote]]


class Way:
    """One connection at a time, for all who ask side by side."""

    def __init__(self) -> None:
        self._remote: Remote | None = None
        self._making = asyncio.Lock()

    async def reached(self, connect: Connect) -> Remote:
        async with self._making:
            if self._remote is None or self._remote.lost:
                self._remote = await connect()
            return self._remote

    def close(self) -> None:
        """The steward sees that nobody is here any more: what was blocked on is cancelled."""
        if self._remote is not None:
            self._remote.close()
            self._remote = None


class Link(Way):
    """Verbs to whichever steward there is. One that is lost meanwhile is followed by another.

    Nothing is done twice: a spawn has its key, a plan is begun once, and for the rest a repetition
    says so.
    """

    def __init__(self, connect: Connect, tries: int = 3) -> None:
        super().__init__()
        self._connect = connect
        self._tries = tries

    async def call(self, verb: str, **params: Any) -> Any:
        """The verb's answer; asked again of the next steward if the first ended meanwhile.

        Raises:
            RetinueError: what the steward said, or why there is none.
        """
        for left in reversed(range(self._tries)):
            try:
                remote = await self.reached(self._connect)
                return await remote.call(verb, **params)
            except StewardUnavailable as error:
                if error.code != "steward_lost" or not left:
                    raise
            if verb in TOLD_AGAIN:
                params["again"] = True
        raise AssertionError("the last try returns or raises")
