"""Requests on their way in: what one child can have the steward hold, and read, has an end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from retinue.gateway import wires
from retinue.gateway.outline import LARGE, TooMany
from retinue.gateway.wires import Asked

LARGEST_REQUEST = 64 * 1024 * 1024  # vendors take 32 to 50, pictures and all
HEAVY = 1024 * 1024  # what is smaller is not counted
ROOM = 2 * LARGEST_REQUEST  # for heavy ones of one child, until they are answered


class TooLarge(Exception):
    """No vendor would take such a request; the message says why."""


class Intake:
    """Of one child. A request that finds no room waits, unread, until others are answered."""

    def __init__(self) -> None:
        self._left = ROOM
        self._change = asyncio.Condition()
        self._reading = asyncio.Lock()  # one large request after the other

    @asynccontextmanager
    async def held(self, request: web.BaseRequest) -> AsyncIterator[bytes]:
        """The whole request, for as long as it is needed.

        Raises:
            TooLarge: it is not to be had.
        """
        size = _size(request)
        if size <= HEAVY:
            yield await _whole(request)
            return
        async with self._change:
            await self._change.wait_for(lambda: self._left >= size)
            self._left -= size
        try:
            body = await _whole(request)
            await self._give_back(size - len(body))  # it might have become more
            size = len(body)
            yield body
        finally:
            await self._give_back(size)

    async def _give_back(self, size: int) -> None:
        self._left += size
        async with self._change:
            self._change.notify_all()

    async def described(self, wire: str, path: str, body: bytes) -> Asked:
        """What a request asks for; a large one is read beside everything else.

        Raises:
            TooLarge: there is too much in it.
        """
        if len(body) <= LARGE:
            return wires.describe(wire, path, body)
        async with self._reading:
            try:
                return await asyncio.to_thread(wires.describe, wire, path, body)
            except TooMany:
                raise TooLarge("there are more strings in it than any model reads") from None


def _size(request: web.BaseRequest) -> int:
    """What it may come to.

    Raises:
        TooLarge: it says so itself.
    """
    if not request.body_exists:
        return 0
    said = request.content_length
    if said is None or "Content-Encoding" in request.headers:
        return LARGEST_REQUEST
    if said > LARGEST_REQUEST:
        raise TooLarge(_TOO_LARGE)
    return said


async def _whole(request: web.BaseRequest) -> bytes:
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise TooLarge(_TOO_LARGE) from None


_TOO_LARGE = f"it may have {LARGEST_REQUEST >> 20} MiB at most"
