"""Output and ends of processes on the event loop, without threads or polling."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

from retinue.connections import LineBuffer

Found = TypeVar("Found")


async def wait_exit(pid: int) -> None:
    """Wait until a child of this process exits; the caller has to reap it.

    Raises:
        OSError: no pidfd can be opened.
    """
    loop = asyncio.get_running_loop()
    pidfd = os.pidfd_open(pid)
    over = asyncio.Event()
    loop.add_reader(pidfd, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


class LineReader(asyncio.Protocol):
    """Reader of a pipe, in lines."""

    def __init__(
        self,
        most: int,
        hear: Callable[[bytes | None], None],
        closed: Callable[[], None] = lambda: None,
    ) -> None:
        """Args:
        most: bytes of a line.
        hear: called with each line, and with None for one that is too long.
        closed: called when the pipe ends.
        """
        self._hear = hear
        self._closed = closed
        self._buffer = LineBuffer(most)
        self.over = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        for line in self._buffer.take_lines(data):
            self._hear(None if line is None else bytes(line))

    def connection_lost(self, exc: Exception | None) -> None:
        # A program that is killed may not have ended its last line.
        rest = self._buffer.take_rest()
        if rest:
            self._hear(bytes(rest))
        self.over.set()
        self._closed()


class StderrTail(asyncio.Protocol):
    """Reader of a pipe that keeps only its end."""

    def __init__(self, most: int) -> None:
        """Args: most: bytes that are kept."""
        self._most = most
        self._kept = b""
        self.over = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self._kept = (self._kept + data)[-self._most :]

    def connection_lost(self, exc: Exception | None) -> None:
        self.over.set()

    @property
    def lines(self) -> list[str]:
        """Its last lines, without blank ones."""
        lines = self._kept.decode("utf-8", "replace").splitlines()
        return [line.strip() for line in lines if line.strip()]


async def finish_work(work: Awaitable[Found]) -> Found:
    """Await work and return its result; if this task is cancelled, the work is finished first."""
    # `shield` leaves the work running when this task is cancelled; the wait below outlasts it.
    working = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait([working])
        # Retrieve the exception, or asyncio logs that it was never retrieved.
        if not working.cancelled():
            working.exception()
        raise
