"""Connections to providers, each carrying one request at a time, straight from the socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from retinue.wire.framing import LARGEST_HEAD, Body, Head, Malformed, body_of, read_head

READ_AHEAD = 256 * 1024  # of an answer that nobody takes yet

Take = Callable[[bytes, bool], bool]  # a piece, and whether it is the last; if more may come


class Cut(Exception):
    """No whole answer came; the message says why."""


class Line(asyncio.Protocol):
    """A connection. Pieces of an answer are handed on within the call that brings them."""

    def __init__(self) -> None:
        self.closed = False
        self._transport: asyncio.Transport | None = None
        self._asked = False  # and not yet answered whole
        self._bytes = b""  # of a head that is not whole
        self._head: Head | None = None
        self._body: Body | None = None
        self._early: list[bytes] = []  # pieces that came before anybody took them
        self._early_size = 0
        self._take: Take | None = None
        self._full = False  # whoever takes has said no
        self._moved: asyncio.Future[None] | None = None
        self._failure: Cut | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def secure(self, transport: asyncio.BaseTransport) -> None:
        """What passes from now on is ciphered: the transport does it."""
        self._transport = cast(asyncio.Transport, transport)
        self._asked, self._head, self._body = False, None, None

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    @property
    def whole(self) -> bool:
        """Whether nothing more comes of the answer."""
        return self._body is not None and self._body.whole

    @property
    def keeps(self) -> bool:
        """Whether another request may follow: nothing of this answer is left for anybody."""
        head, taken = self._head, self._take is not None
        return self.whole and taken and not self.closed and head is not None and head.keeps

    async def ask(self, request: bytes) -> Head:
        """The head of the answer is there.

        Raises:
            Cut: none came.
        """
        self._asked, self._head, self._body, self._take = True, None, None, None
        self.transport.write(request)
        while self._head is None:
            await self._move()
        return self._head

    def pour(self, take: Take) -> None:
        """Every piece goes there, beginning with those that are here; while it says no, none."""
        first, self._take, self._full = self._take is None, take, False
        if first and (self._early or self.whole):
            early, self._early, self._early_size = b"".join(self._early), [], 0
            self._full = not take(early, self.whole) and not self.whole
        if self._full:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    async def poured(self) -> bool:
        """Whether all has been taken; if not, whoever takes is full and pours again.

        Raises:
            Cut: the answer ended before its end.
        """
        while not self.whole:
            if self._full:
                return False
            await self._move()
        return True

    def close(self, why: str = "the connection was closed") -> None:
        self.closed = True
        if not self.whole:
            self._fail(why)
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            if self._body is None:
                data = self._read_head(data)
                if self._body is None or not data:
                    return
            self._hand_on(self._body, self._body.feed(data))
        except Malformed as why:
            self.close(f"its answer is no HTTP: {why}")

    def eof_received(self) -> None:
        self.closed = True
        body = self._body
        if body is not None and not body.whole and body.closed():
            body.whole = True
            self._hand_on(body, b"")

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None and not self.closed:
            self.eof_received()
        self.closed = True
        if not self.whole:
            self._fail(str(exc) if exc else "the connection was closed")

    def _read_head(self, data: bytes) -> bytes:
        """What follows the head, once it is whole."""
        if not self._asked:
            raise Malformed("nobody asked")
        self._bytes += data
        while (end := self._bytes.find(b"\r\n\r\n")) >= 0:
            head, self._bytes = read_head(self._bytes[:end]), self._bytes[end + 4 :]
            if head.status >= 200:
                rest, self._bytes = self._bytes, b""
                self._head, self._body = head, body_of(head)
                self._wake()
                return rest
        if len(self._bytes) > LARGEST_HEAD:
            raise Malformed("its head does not end")
        return b""

    def _hand_on(self, body: Body, piece: bytes) -> None:
        whole = body.whole
        if self._take is None:
            self._early.append(piece)
            self._early_size += len(piece)
            if self._early_size > READ_AHEAD:
                self.transport.pause_reading()
        elif (piece or whole) and not self._take(piece, whole) and not whole:
            self._full = True
            self.transport.pause_reading()
            self._wake()
        if whole:
            self._asked = False
            self._wake()

    async def _move(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._moved = asyncio.get_running_loop().create_future()
        try:
            await self._moved
        finally:
            self._moved = None
        if self._failure is not None:
            raise self._failure

    def _wake(self) -> None:
        if self._moved is not None and not self._moved.done():
            self._moved.set_result(None)

    def _fail(self, why: str) -> None:
        if self._failure is None:
            self._failure = Cut(why)
        self._wake()
