"""Listening addresses and connections of the HTTP servers."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_address
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from retinue.core.errors import BadInput

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
BACKLOG = 512


def listen(host: str, port: int) -> socket.socket:
    """Raises:
    BadInput: the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise BadInput(
            f"{host}:{port} cannot be used: {why}",
            code="bad_address",
            hint="--port 0 takes a free port",
        ) from None


def is_loopback(host: str) -> bool:
    return host == "localhost" or (is_address(host) and ip_address(host.strip("[]")).is_loopback)


def is_address(name: str) -> bool:
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def format_url_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


READ_SECONDS = 20.0  # how long a client may leave sent data unread
MAX_CONNECTIONS = 256


class HttpConnection(H11Protocol):
    """A client's connection, closed if the client sends no request or does not read."""

    request_seconds = 10.0  # for a complete request, from the connection or its first byte on
    # Connections without a complete request, oldest first.
    awaiting_request: ClassVar[dict[HttpConnection, None]] = {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._request_timer: asyncio.TimerHandle | None = None
        self._read_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_request_timer()
        # At the limit, the connection that has waited longest for a request is closed.
        if len(self.connections) > MAX_CONNECTIONS:
            next(iter(self.awaiting_request)).close_for_newer()

    def close_for_newer(self) -> None:
        """Close this connection in favour of a new one."""
        self._cancel_request_timer()
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._start_request_timer()
        else:
            self._cancel_request_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_request_timer()
        self._cancel_read_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        # The write buffer is full: a client that reads nothing must not hold it for ever.
        self._cancel_read_timer()
        self._read_timer = self.loop.call_later(READ_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        self._cancel_read_timer()
        super().resume_writing()

    def _start_request_timer(self) -> None:
        if self._request_timer is None:
            self.awaiting_request[self] = None
            self._request_timer = self.loop.call_later(self.request_seconds, self.transport.abort)

    def _cancel_request_timer(self) -> None:
        self.awaiting_request.pop(self, None)
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _cancel_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None
