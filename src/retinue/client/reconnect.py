"""Connections to a steward that are made again after it was lost."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from retinue.client.async_client import Remote
from retinue.client.repeatable_calls import LOST, LossCounter, prepare_repeat
from retinue.core.errors import StewardUnavailable

# A repetition of these verbs carries `again`, so that the steward does them only once.
TOLD_AGAIN = ("parent.continue", "parent.cancel")

Connect = Callable[[], Awaitable[Remote]]


class StewardConnector:
    """Holder of one connection, shared by concurrent requests."""

    def __init__(self) -> None:
        self._remote: Remote | None = None
        self._making = asyncio.Lock()

    async def get_remote(self, connect: Connect) -> Remote:
        # With the lock, concurrent requests make one new connection, not one each.
        async with self._making:
            if self._remote is None or self._remote.has_ended():
                self._remote = await connect()
            return self._remote

    async def leave_if_idle(self) -> None:
        """Unless a response is pending, end the connection and wait until the steward does."""
        if self._remote is not None and self._remote.is_idle:
            remote = self._remote
            self._remote = None
            await remote.leave()
            remote.close()

    def close(self) -> None:
        """Close the connection; the steward cancels blocking requests."""
        if self._remote is not None:
            self._remote.close()
            self._remote = None


class RetryingLink(StewardConnector):
    """Link that repeats a request with the next steward if one is lost.

    Nothing is done twice: a spawn has a key, a plan starts once, and `again` marks the others.
    """

    def __init__(self, connect: Connect, tries: int = 3) -> None:
        super().__init__()
        self._connect = connect
        self._tries = tries

    async def call(self, verb: str, **params: Any) -> Any:
        """Call a verb and return its result; if the steward is lost, repeat the request.

        Raises:
            RetinueError: the steward refused the request, or none could be reached.
        """
        for left in reversed(range(self._tries)):
            try:
                remote = await self.get_remote(self._connect)
                return await remote.call(verb, **params)
            except StewardUnavailable as error:
                if error.code != LOST or not left:
                    raise
            if verb in TOLD_AGAIN:
                params["again"] = True
        raise AssertionError("the last try returns or raises")


class ProgramLink(StewardConnector):
    """Link of a Python program, for as long as it runs.

    If a steward is lost, repeatable requests go to the next one. The others fail with
    `steward_lost`, because they may have been carried out.
    """

    def __init__(self, connect: Connect) -> None:
        super().__init__()
        self._connect = connect

    async def open(self) -> None:
        """Connect to the steward now.

        Raises:
            RetinueError: no steward could be reached.
        """
        await self.get_remote(self._connect)

    async def leave(self) -> None:
        """Tell the current steward that no more requests follow."""
        if self._remote is not None and not self._remote.has_ended():
            await self._remote.leave()

    async def call(self, verb: str, **params: Any) -> Any:
        """Call a verb and return its result.

        Raises:
            RetinueError: the steward refused the request, or none could be reached.
        """
        # A spawn is repeatable only with a key.
        if verb == "subagent.spawn" and not params.get("key"):
            params["key"] = f"call-{os.urandom(8).hex()}"
        losses = LossCounter()
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            try:
                remote = await self.get_remote(self._connect)
                return await remote.call(verb, **params)
            except StewardUnavailable as error:
                again = prepare_repeat(verb, params, loop.time() - began)
                if error.code != LOST or again is None:
                    raise
                losses.add(loop.time())
                params = again

    async def stream(self, verb: str, **params: Any) -> AsyncGenerator[Any, None]:
        """Yield the items of a verb; after a lost steward, events continue where they ended."""
        losses = LossCounter()
        loop = asyncio.get_running_loop()
        while True:
            remote = await self.get_remote(self._connect)
            try:
                async with aclosing(remote.stream(verb, **params)) as items:
                    async for item in items:
                        yield item
                        if verb == "task.events":
                            params["since"] = item["seq"]
                return
            except StewardUnavailable as error:
                if error.code != LOST or verb != "task.events":
                    raise
                losses.add(loop.time())
