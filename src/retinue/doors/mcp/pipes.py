"""Standard input and output as lines, with nothing else on them and a bound on what is kept."""

from __future__ import annotations

import asyncio
import os
import select
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import cast

from retinue.doors.mcp.incoming import KEPT, MAX_LINE, Wrong, too_long

WAITING_BYTES = MAX_LINE  # of lines that may lie unread before the pipe is left alone
WAITING = 256  # of them
CHUNK = 256 * 1024


@contextmanager
def claimed() -> Iterator[tuple[int, int]]:
    """The two pipes under numbers of their own.

    Whatever else this process or one that it starts prints goes to standard error, and
    whatever else reads finds nothing.
    """
    source, sink = (os.dup(number) for number in (0, 1))
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        os.dup2(nothing, 0)
        try:
            os.dup2(2, 1)
        except OSError:  # there is no standard error
            os.dup2(nothing, 1)
        yield source, sink
    finally:
        os.close(nothing)


class Lines(asyncio.Protocol):
    """Whole lines, in order. Of one that is too long only its ends are kept."""

    def __init__(self) -> None:
        self._parts = bytearray()
        self._head: bytes | None = None  # of the line that is being dropped
        self._found: deque[bytes | Wrong] = deque()
        self._weight = 0  # of what was found
        self._over = False
        self._changed = asyncio.Event()
        self._transport: asyncio.ReadTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.ReadTransport, transport)

    def data_received(self, data: bytes) -> None:
        *whole, rest = data.split(b"\n")
        for part in whole:
            self._keep(part)
            self._end_line()
        self._keep(rest)
        many = len(self._found) > WAITING or self._weight > WAITING_BYTES
        if many and self._transport is not None:
            self._transport.pause_reading()
        self._changed.set()

    def eof_received(self) -> None:
        if self._parts or self._head is not None:
            self._end_line()
        self._over = True
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        self._changed.set()

    async def next(self) -> bytes | Wrong | None:
        """The next line, or why it was dropped; None at the end."""
        while not self._found:
            if self._over:
                return None
            if self._transport is not None:
                self._transport.resume_reading()
            self._changed.clear()
            await self._changed.wait()
        found = self._found.popleft()
        self._weight -= _weight(found)
        return found

    def _keep(self, part: bytes) -> None:
        self._parts += part
        if len(self._parts) > MAX_LINE and self._head is None:
            self._head = bytes(self._parts[:KEPT])
        if self._head is not None and len(self._parts) > KEPT:
            del self._parts[:-KEPT]

    def _end_line(self) -> None:
        if self._head is not None:
            self._found.append(too_long(self._head, bytes(self._parts)))
            self._head = None
        else:
            self._found.append(bytes(self._parts))
        self._weight += _weight(self._found[-1])
        self._parts = bytearray()


def _weight(found: bytes | Wrong) -> int:
    return len(found) if isinstance(found, bytes) else 0


async def read_from(source: int) -> Lines:
    """The lines of a descriptor, whatever it is."""
    file = os.fdopen(source, "rb", buffering=0)
    if _makes_wait(source):
        _, lines = await asyncio.get_running_loop().connect_read_pipe(Lines, file)
        return lines
    lines = Lines()
    while data := file.read(CHUNK):
        lines.data_received(data)
    lines.eof_received()
    return lines


def _makes_wait(source: int) -> bool:
    """Whether it can be waited for; a plain file cannot, nor /dev/null, and never has to be."""
    with select.epoll() as poll:
        try:
            poll.register(source, select.EPOLLIN)
        except PermissionError:
            return False
    return True


class Sink:
    """Whole lines out, one after the other, waiting for a reader that is slow."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._writer: asyncio.StreamWriter | None = None

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        file = os.fdopen(self._descriptor, "wb", buffering=0, closefd=False)
        with suppress(ValueError):  # a plain file never makes anyone wait
            transport, protocol = await loop.connect_write_pipe(
                lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), file
            )
            self._writer = asyncio.StreamWriter(transport, protocol, None, loop)

    async def send(self, line: bytes) -> None:
        """Raises:
        ConnectionError, BrokenPipeError: nobody reads any more.
        """
        if self._writer is None:
            view = memoryview(line)
            while view:
                view = view[os.write(self._descriptor, view) :]
            return
        if self._writer.is_closing():
            raise BrokenPipeError
        self._writer.write(line)
        await self._writer.drain()
