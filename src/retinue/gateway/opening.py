"""Listening sockets, and the connections that come in by them: so many at most by each."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler as Connection

from retinue.gateway.intake import LARGEST_REQUEST

OF_ONE_CHILD = 64  # connections; a team has one or two for each of its members
OF_ALL = 1024  # children that share one opening
FIRST_REQUEST_S = 10.0  # after which a connection that asked for nothing is closed
KEPT_S = 600.0  # a connection on which something was asked
CLOSE_S = 0.05  # for connections on which nobody asks; aiohttp takes 0 for ever
NO_DESCRIPTOR_S = 1.0  # until it is tried again

Face = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Opening:
    """One listening socket. With all places taken, who has been idle longest makes room; where
    nobody is, the next waits outside, where it costs nothing.
    """

    def __init__(
        self, listener: socket.socket, face: Face, most: int, silence_s: float = FIRST_REQUEST_S
    ) -> None:
        self._silence_s = silence_s
        self._listener = listener
        self._face = face
        self._most = most
        self._loop = asyncio.get_running_loop()
        self._http = _Http(self._serve, self._gone)
        self._here: set[Connection] = set()
        self._silent: dict[Connection, asyncio.TimerHandle] = {}  # nothing was asked yet
        self._idle: dict[Connection, None] = {}  # nothing is asked now; who is longest, first
        self._arriving: set[asyncio.Task[Any]] = set()
        self._listening = self._closed = False
        self._listen()

    async def close(self) -> None:
        """Nobody comes in, and nobody is left."""
        self._pause()
        self._closed = True
        self._listener.close()
        for arrival in self._arriving:
            arrival.cancel()
        await self._http.shutdown(CLOSE_S)

    def _listen(self) -> None:
        if not self._listening and not self._closed:
            self._listening = True
            self._loop.add_reader(self._listener, self._let_in)

    def _pause(self) -> None:
        if self._listening:
            self._listening = False
            self._loop.remove_reader(self._listener)

    def _let_in(self) -> None:
        if len(self._here) >= self._most and not self._make_room():
            self._pause()
            return
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError:  # no descriptor is free
            self._pause()
            self._loop.call_later(NO_DESCRIPTOR_S, self._listen)
            return
        connection.setblocking(False)
        made = self._http()
        self._here.add(made)
        self._silent[made] = self._loop.call_later(self._silence_s, made.force_close)
        arrival = self._loop.create_task(
            self._loop.connect_accepted_socket(lambda: made, connection)
        )
        self._arriving.add(arrival)
        arrival.add_done_callback(self._arriving.discard)

    def _make_room(self) -> bool:
        """Whether one that was idle is on its way out; not one whose answer is still unread."""
        for each in self._idle:
            if each.transport is not None and not each.transport.get_write_buffer_size():
                del self._idle[each]
                each.force_close()
                return True
        return False

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        self._asked(connection)
        self._idle.pop(connection, None)
        try:
            return await self._face(request)
        finally:
            if connection in self._here:
                self._idle[connection] = None
                self._listen()

    def _asked(self, connection: Connection) -> None:
        if (timer := self._silent.pop(connection, None)) is not None:
            timer.cancel()

    def _gone(self, connection: Connection) -> None:
        self._asked(connection)
        self._idle.pop(connection, None)
        self._here.discard(connection)
        self._listen()


class _Http(web.Server):
    """Tells of connections that are gone."""

    def __init__(self, face: Face, gone: Callable[[Connection], None]) -> None:
        super().__init__(
            face,
            request_factory=_request,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=KEPT_S,
        )
        self._gone = gone

    def connection_lost(self, connection: Connection, exc: BaseException | None = None) -> None:
        super().connection_lost(connection, exc)
        self._gone(connection)


def _request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(
        message, payload, protocol, writer, task, loop, client_max_size=LARGEST_REQUEST
    )
