"""HTTP/1.1 client connection to a provider, one request at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from retinue.http_framing import (
    LARGEST_HEAD,
    BodyReader,
    MalformedResponse,
    ResponseHead,
    make_body_reader,
    read_head,
)

READ_AHEAD = 256 * 1024  # bytes buffered before `stream_to` is called

# Receives a piece and whether it is the last; returns whether it accepts more.
Take = Callable[[bytes, bool], bool]


class ConnectionCut(Exception):
    """The answer did not arrive whole; the message says why."""


class ProviderConnection(asyncio.Protocol):
    """Client connection that passes each piece of an answer on as soon as it is received."""

    def __init__(self) -> None:
        self.closed = False
        self._transport: asyncio.Transport | None = None
        self._asked = False  # a request is not yet answered whole
        self._bytes = b""  # incomplete head
        self._head: ResponseHead | None = None
        self._body: BodyReader | None = None
        self._early: list[bytes] = []  # pieces received before `stream_to`
        self._early_size = 0
        self._take: Take | None = None
        self._full = False  # the receiver accepts no more for now
        self._moved: asyncio.Future[None] | None = None
        self._failure: ConnectionCut | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def use_tls(self, transport: asyncio.BaseTransport) -> None:
        """Continue over a TLS transport, after a proxy opened the tunnel."""
        self._transport = cast(asyncio.Transport, transport)
        self._asked, self._head, self._body = False, None, None

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    @property
    def whole(self) -> bool:
        """Whether the answer has arrived whole."""
        return self._body is not None and self._body.whole

    @property
    def keeps(self) -> bool:
        """Whether the connection can carry another request."""
        head = self._head
        taken = self._take is not None
        return self.whole and taken and not self.closed and head is not None and head.keeps

    async def ask(self, request: bytes) -> ResponseHead:
        """Send a request and wait for the head of its answer.

        Raises:
            ConnectionCut: no head arrived.
        """
        self._asked, self._head, self._body, self._take = True, None, None, None
        self.transport.write(request)
        while self._head is None:
            await self._wait_change()
        return self._head

    def stream_to(self, take: Take) -> None:
        """Pass all pieces to `take`, buffered ones first; pause reading when it returns False."""
        first = self._take is None
        self._take = take
        self._full = False
        if first and (self._early or self.whole):
            early = b"".join(self._early)
            self._early = []
            self._early_size = 0
            self._full = not take(early, self.whole) and not self.whole
        if self._full:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    async def wait_streamed(self) -> bool:
        """Wait for the end of the answer (True) or a full receiver (False).

        After False, the caller drains the receiver and calls `stream_to` again.

        Raises:
            ConnectionCut: the connection ended before the answer did.
        """
        while not self.whole:
            if self._full:
                return False
            await self._wait_change()
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
            self._deliver_piece(self._body, self._body.feed(data))
        except MalformedResponse as why:
            self.close(f"its answer is not valid HTTP: {why}")

    def eof_received(self) -> None:
        self.closed = True
        # A body without a length ends with the connection.
        body = self._body
        if body is not None and not body.whole and body.is_complete():
            body.whole = True
            self._deliver_piece(body, b"")

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None and not self.closed:
            self.eof_received()
        self.closed = True
        if not self.whole:
            self._fail(str(exc) if exc else "the connection was closed")

    def _read_head(self, data: bytes) -> bytes:
        """Parse the head once it is whole; return the bytes after it."""
        # Bytes without a request could be taken for the answer to the next one.
        if not self._asked:
            raise MalformedResponse("bytes without a request")
        self._bytes += data
        while (end := self._bytes.find(b"\r\n\r\n")) >= 0:
            head = read_head(self._bytes[:end])
            self._bytes = self._bytes[end + 4 :]
            # Skip interim responses such as 100 Continue.
            if head.status >= 200:
                rest = self._bytes
                self._bytes = b""
                self._head = head
                self._body = make_body_reader(head)
                self._wake()
                return rest
        if len(self._bytes) > LARGEST_HEAD:
            raise MalformedResponse(f"its head exceeds {LARGEST_HEAD} bytes")
        return b""

    def _deliver_piece(self, body: BodyReader, piece: bytes) -> None:
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

    async def _wait_change(self) -> None:
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
            self._failure = ConnectionCut(why)
        self._wake()
