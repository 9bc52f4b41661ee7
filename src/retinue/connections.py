"""Connections of servers: an accept loop, a limit on connections, and a bounded line splitter.

For the servers that all children or users can reach. A server for one child's own programs, or for
one process of this user, uses `asyncio.start_server`.
"""

from __future__ import annotations

import asyncio
import math
import select
import socket
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

RETRY_ACCEPT_SECONDS = 1.0  # pause before accepting again without a free descriptor

Connection = TypeVar("Connection")
MakeProtocol = Callable[[socket.socket], asyncio.BaseProtocol | None]


class AcceptLoop:
    """Accept loop of one listening socket; makes one protocol for each connection."""

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: MakeProtocol,
        *,
        batch: int = 1,
        has_capacity: Callable[[], bool] = lambda: True,
        refuse_without_descriptor: Callable[[socket.socket], None] | None = None,
    ) -> None:
        """Args:
        make_protocol: returns the protocol of a connection, or None if it closed the connection.
        batch: how many waiting connections are accepted before any of them is served.
        has_capacity: if it returns False, accepting pauses until `resume`.
        refuse_without_descriptor: called if no descriptor is free; it accepts a connection from
            the listener and refuses it, or raises OSError.
        """
        self._listener = listener
        self._make_protocol = make_protocol
        self._batch = batch
        self._has_capacity = has_capacity
        self._refuse = refuse_without_descriptor
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        self._connecting: set[asyncio.Task[Any]] = set()
        self._is_listening = False
        self._is_closed = False
        self.resume()

    def resume(self) -> None:
        """Accept connections again after a pause; do nothing if there was none."""
        if not self._is_listening and not self._is_closed:
            self._is_listening = True
            self._loop.add_reader(self._listener, self._accept_waiting)

    def close(self) -> None:
        """Stop accepting and close the listening socket."""
        self._pause()
        self._is_closed = True
        if self._retry is not None:
            self._retry.cancel()
        self._listener.close()
        for task in self._connecting:
            task.cancel()

    def has_pending(self) -> bool:
        """Return whether a connection waits in the backlog or is being set up."""
        if self._listener.fileno() < 0:
            return False  # closed
        backlog = select.poll()
        backlog.register(self._listener, select.POLLIN)
        return bool(self._connecting or backlog.poll(0))

    def _pause(self) -> None:
        if self._is_listening:
            self._is_listening = False
            self._loop.remove_reader(self._listener)

    def _accept_waiting(self) -> None:
        for _ in range(self._batch):
            # Connections beyond the limit wait in the kernel's backlog.
            if not self._has_capacity():
                self._pause()
                return
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._on_no_descriptor()
                return
            connection.setblocking(False)
            protocol = self._make_protocol(connection)
            if protocol is not None:
                self._serve(protocol, connection)

    def _serve(self, protocol: asyncio.BaseProtocol, connection: socket.socket) -> None:
        connecting = self._loop.connect_accepted_socket(lambda: protocol, connection)
        task = self._loop.create_task(connecting)
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def _on_no_descriptor(self) -> None:
        try:
            if self._refuse is not None:
                self._refuse(self._listener)
                return
        except OSError:
            pass
        # The backlog stays readable: without a pause the event loop would spin.
        self._pause()
        self._retry = self._loop.call_later(RETRY_ACCEPT_SECONDS, self.resume)


class ConnectionLimit(Generic[Connection]):
    """Limit on open connections. At the limit, the longest idle one is closed for a new one."""

    def __init__(self, most: int, close_idle: Callable[[Connection], bool]) -> None:
        """Args: close_idle: closes an idle connection, or returns False if it must stay."""
        self._most = most
        self._close_idle = close_idle
        self._open: set[Connection] = set()
        self._idle: dict[Connection, None] = {}  # longest idle first

    def __contains__(self, connection: Connection) -> bool:
        return connection in self._open

    def add(self, connection: Connection) -> None:
        self._open.add(connection)

    def remove(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._idle.pop(connection, None)

    def mark_idle(self, connection: Connection) -> None:
        if connection in self._open:
            self._idle[connection] = None

    def mark_busy(self, connection: Connection) -> None:
        self._idle.pop(connection, None)

    def has_capacity(self) -> bool:
        """Return whether one more connection fits, if necessary after closing an idle one."""
        if len(self._open) < self._most:
            return True
        for connection in self._idle:
            if self._close_idle(connection):
                del self._idle[connection]
                return True
        return False


class LineBuffer:
    """Splitter of a stream into lines; keeps the incomplete last line, up to a limit."""

    def __init__(self, most: float = math.inf) -> None:
        """Args: most: bytes of a line."""
        self.most = most
        self._rest = bytearray()
        self._is_too_long = False  # of the incomplete last line

    @property
    def is_too_long(self) -> bool:
        """Whether the incomplete last line already exceeds the limit; its bytes are dropped."""
        return self._is_too_long

    def take_lines(self, data: bytes) -> Iterator[bytearray | None]:
        """Yield the lines that end in this data, without line ends; None for one too long."""
        *ends, rest = data.split(b"\n")
        for end in ends:
            self._keep(end)
            line = None if self._is_too_long else self._rest
            self._rest = bytearray()
            self._is_too_long = False
            yield line
        self._keep(rest)

    def take_rest(self) -> bytearray | None:
        """Return the incomplete last line of a stream that has ended; None if it is too long."""
        return None if self._is_too_long else self._rest

    def _keep(self, part: bytes) -> None:
        if self._is_too_long or len(self._rest) + len(part) > self.most:
            # Dropped before the line ends, or an endless line would fill the memory.
            self._is_too_long = True
            self._rest = bytearray()
        else:
            self._rest += part
