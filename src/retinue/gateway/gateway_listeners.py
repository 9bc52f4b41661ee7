"""Listening sockets of the gateway, with limits on connections and on buffered requests."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler as Connection

from retinue.connections import AcceptLoop, ConnectionLimit
from retinue.gateway.request_summary import (
    LARGE,
    DocumentTooLarge,
    RequestSummary,
    describe_request,
)
from retinue.gateway.vendors.base import Vendor

# Vendors accept 32 to 50 MiB, images included.
LARGEST_REQUEST = 64 * 1024 * 1024
LARGE_BODY = 1024 * 1024  # smaller requests do not count towards MOST_BUFFERED
MOST_BUFFERED = 2 * LARGEST_REQUEST  # memory for unanswered large requests of one child


class RequestTooLarge(Exception):
    """The request exceeds every vendor's limit; the message says which."""


class RequestBuffer:
    """Memory limit for the request bodies of one child.

    A request that does not fit waits, unread, until earlier ones are answered.
    """

    def __init__(self) -> None:
        self._available = MOST_BUFFERED
        self._change = asyncio.Condition()
        # Large requests are parsed one at a time, so that one child cannot occupy every thread.
        self._parsing = asyncio.Lock()

    @asynccontextmanager
    async def hold_body(self, request: web.BaseRequest) -> AsyncIterator[bytes]:
        """Read the whole body and keep its memory reserved inside the context.

        Raises:
            RequestTooLarge: the body exceeds the limit.
        """
        size = _estimate_size(request)
        if size <= LARGE_BODY:
            yield await _read_body(request)
            return
        # Reserve before reading: until then the bytes stay in the child's socket.
        async with self._change:
            await self._change.wait_for(lambda: self._available >= size)
            self._available -= size
        try:
            body = await _read_body(request)
            # The reservation was an upper bound. Return what the body did not need.
            await self._release(size - len(body))
            size = len(body)
            yield body
        finally:
            await self._release(size)

    async def _release(self, size: int) -> None:
        self._available += size
        async with self._change:
            self._change.notify_all()

    async def describe(self, vendor: Vendor, path: str, body: bytes) -> RequestSummary:
        """Summarise a request; parse large ones in a thread.

        Raises:
            RequestTooLarge: the request has too many strings.
        """
        # A small body is parsed quickly enough to do it on the event loop.
        if len(body) <= LARGE:
            return describe_request(vendor, path, body)
        async with self._parsing:
            try:
                return await asyncio.to_thread(describe_request, vendor, path, body)
            except DocumentTooLarge:
                raise RequestTooLarge("it has more strings than any model can read") from None


def _estimate_size(request: web.BaseRequest) -> int:
    """Return an upper bound for the size of the body.

    Raises:
        RequestTooLarge: its Content-Length exceeds the limit.
    """
    if not request.body_exists:
        return 0
    length = request.content_length
    # A chunked or compressed body can grow to the limit.
    if length is None or "Content-Encoding" in request.headers:
        return LARGEST_REQUEST
    if length > LARGEST_REQUEST:
        raise RequestTooLarge(_TOO_LARGE)
    return length


async def _read_body(request: web.BaseRequest) -> bytes:
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise RequestTooLarge(_TOO_LARGE) from None


_TOO_LARGE = f"the limit is {LARGEST_REQUEST >> 20} MiB"


# Connection limits. A team keeps one or two connections for each member.
MOST_FOR_CHILD = 64
MOST_ON_LOOPBACK = 256  # any user of the machine can connect to such a child's port
MOST_FOR_USER = 1024  # for the socket that all programs of the user share
FIRST_REQUEST_S = 10.0  # a connection without a request is closed after this time
KEEP_ALIVE_S = 600.0  # keep-alive after the first request
CLOSE_S = 0.05  # for idle connections at shutdown; aiohttp would take 0 as "no limit"

RequestHandler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


def _is_own_error(record: logging.LogRecord) -> bool:
    """Return whether a record is about more than a malformed request."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


# aiohttp logs malformed requests with a traceback: a child could fill the disk with them.
_logger = logging.getLogger("retinue.gateway")
_logger.addFilter(_is_own_error)


class GatewayListener:
    """HTTP server on one listening socket with a limit on connections.

    At the limit, the connection that has been idle longest is closed. If none is idle, accepting
    pauses and new connections wait in the kernel's backlog.
    """

    def __init__(
        self,
        listener: socket.socket,
        handler: RequestHandler,
        most: int,
        first_request_s: float = FIRST_REQUEST_S,
        refuses: Callable[[socket.socket], bool] = lambda _: False,
    ) -> None:
        self._first_request_s = first_request_s
        self._refuses = refuses  # decides whether a new connection is closed at once
        self._handler = handler
        self._http = _HttpServer(self._serve, self._on_connection_lost)
        self._timers: dict[Connection, asyncio.TimerHandle] = {}  # of connections without a request
        self._limit: ConnectionLimit[Connection] = ConnectionLimit(most, _close_if_read)
        self._accepting = AcceptLoop(
            listener, self._make_connection, has_capacity=self._limit.has_capacity
        )

    async def close(self) -> None:
        """Stop accepting and close every connection."""
        self._accepting.close()
        await self._http.shutdown(CLOSE_S)

    def _make_connection(self, socket_: socket.socket) -> Connection | None:
        if self._refuses(socket_):
            socket_.close()
            return None
        connection = self._http()
        self._limit.add(connection)
        loop = asyncio.get_running_loop()
        self._timers[connection] = loop.call_later(self._first_request_s, connection.force_close)
        return connection

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        self._cancel_timer(connection)
        self._limit.mark_busy(connection)
        try:
            return await self._handler(request)
        finally:
            # An idle connection can be closed for a new one, so accepting may resume.
            if connection in self._limit:
                self._limit.mark_idle(connection)
                self._accepting.resume()

    def _cancel_timer(self, connection: Connection) -> None:
        if (timer := self._timers.pop(connection, None)) is not None:
            timer.cancel()

    def _on_connection_lost(self, connection: Connection) -> None:
        self._cancel_timer(connection)
        self._limit.remove(connection)
        self._accepting.resume()


def _close_if_read(connection: Connection) -> bool:
    """Close an idle connection, unless the child has not read all of its answer yet."""
    transport = connection.transport
    if transport is None or transport.get_write_buffer_size():
        return False
    connection.force_close()
    return True


class _HttpServer(web.Server):
    """aiohttp server that reports lost connections."""

    def __init__(
        self, handler: RequestHandler, on_connection_lost: Callable[[Connection], None]
    ) -> None:
        super().__init__(
            handler,
            request_factory=_make_request,
            handler_cancellation=True,
            access_log=None,
            logger=_logger,
            keepalive_timeout=KEEP_ALIVE_S,
        )
        self._report_lost = on_connection_lost

    def connection_lost(self, connection: Connection, exc: BaseException | None = None) -> None:
        super().connection_lost(connection, exc)
        self._report_lost(connection)


def _make_request(
    message: Any, payload: Any, protocol: Any, writer: Any, task: Any
) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(
        message, payload, protocol, writer, task, loop, client_max_size=LARGEST_REQUEST
    )
