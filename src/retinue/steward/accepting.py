"""Taking in whoever connects. Without a descriptor for another client, it is told so."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from retinue.domain.errors import LimitExceeded
from retinue.files import RESERVE
from retinue.wire import protocol

NO_DESCRIPTOR_S = 1.0  # until it is tried again
FULL = protocol.encode(
    {
        "id": None,
        "error": protocol.error_to_json(
            LimitExceeded(
                "the steward has too many open files (EMFILE) to take in another client",
                code="too_many_open_files",
                hint="wait for subagents to end or close a connection, then repeat; a steward "
                "started where 'ulimit -Hn' says more can have more",
            )
        ),
    }
)


class Accepting:
    """Each connection has a protocol of its own, until this is closed."""

    def __init__(self, listener: socket.socket, factory: Callable[[], asyncio.Protocol]) -> None:
        self._listener = listener
        self._factory = factory
        self._loop = asyncio.get_running_loop()
        self._again: asyncio.TimerHandle | None = None
        self._arriving: set[asyncio.Task[Any]] = set()
        self._listen()

    def close(self) -> None:
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for arrival in self._arriving:
            arrival.cancel()

    def expects(self) -> bool:
        """Whether somebody is on the way in, or waits outside."""
        door = select.poll()
        door.register(self._listener, select.POLLIN)
        return bool(self._arriving or door.poll(0))

    def _listen(self) -> None:
        self._again = None
        self._loop.add_reader(self._listener, self._let_in)

    def _let_in(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError:  # no descriptor is free
            self._turn_away()
            return
        connection.setblocking(False)
        arrival = self._loop.create_task(
            self._loop.connect_accepted_socket(self._factory, connection)
        )
        self._arriving.add(arrival)
        arrival.add_done_callback(self._arriving.discard)

    def _turn_away(self) -> None:
        """Who came knows why it must go; where even that takes too much, it waits outside."""
        try:
            with RESERVE.lent():
                refused, _ = self._listener.accept()
                with refused, suppress(OSError):
                    refused.send(FULL)
        except OSError:
            self._loop.remove_reader(self._listener)
            self._again = self._loop.call_later(NO_DESCRIPTOR_S, self._listen)
