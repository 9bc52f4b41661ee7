"""Line reader and writer for standard input and output, with bounded buffers."""

from __future__ import annotations

import asyncio
import os
import select
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import cast

from retinue.mcp_server.jsonrpc_validation import MAX_LINE, TOO_LONG, JsonRpcError

# Reading pauses when more bytes or lines than this are waiting.
WAITING_BYTES = MAX_LINE
WAITING = 256
CHUNK = 256 * 1024


@contextmanager
def claim_pipes() -> Iterator[tuple[int, int]]:
    """Move standard input and output to private descriptors and yield these.

    Any other output of this process or its children goes to standard error, and other reads
    find an empty input, so that neither disturbs the protocol.
    """
    source, sink = (os.dup(number) for number in (0, 1))
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        os.dup2(nothing, 0)
        try:
            os.dup2(2, 1)
        except OSError:
            # Standard error is closed.
            os.dup2(nothing, 1)
        yield source, sink
    finally:
        os.close(nothing)


class StdioLines(asyncio.Protocol):
    """Queue of complete lines. A line that is too long is dropped while it arrives."""

    def __init__(self) -> None:
        self._parts = bytearray()
        self._too_long = False  # the line that is arriving
        self._found: deque[bytes | JsonRpcError] = deque()
        self._weight = 0  # bytes in the queue
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
        # Back-pressure: stop reading until read_line() has emptied the queue.
        many = len(self._found) > WAITING or self._weight > WAITING_BYTES
        if many and self._transport is not None:
            self._transport.pause_reading()
        self._changed.set()

    def eof_received(self) -> None:
        if self._parts or self._too_long:
            self._end_line()
        self._over = True
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        self._changed.set()

    async def read_line(self) -> bytes | JsonRpcError | None:
        """Return the next line, or the error for a line that was too long; None at the end."""
        while not self._found:
            if self._over:
                return None
            if self._transport is not None:
                self._transport.resume_reading()
            self._changed.clear()
            await self._changed.wait()
        found = self._found.popleft()
        self._weight -= _measure_size(found)
        return found

    def _keep(self, part: bytes) -> None:
        self._too_long = self._too_long or len(self._parts) + len(part) > MAX_LINE
        if self._too_long:
            self._parts.clear()
        else:
            self._parts += part

    def _end_line(self) -> None:
        self._found.append(TOO_LONG if self._too_long else bytes(self._parts))
        self._weight += _measure_size(self._found[-1])
        self._parts = bytearray()
        self._too_long = False


def _measure_size(found: bytes | JsonRpcError) -> int:
    return len(found) if isinstance(found, bytes) else 0


async def read_from(source: int) -> StdioLines:
    """Return the lines of a pipe, socket, terminal or plain file."""
    file = os.fdopen(source, "rb", buffering=0)
    if _can_be_polled(source):
        _, lines = await asyncio.get_running_loop().connect_read_pipe(StdioLines, file)
        return lines
    lines = StdioLines()
    while data := file.read(CHUNK):
        lines.data_received(data)
    lines.eof_received()
    return lines


def _can_be_polled(source: int) -> bool:
    """Return whether epoll accepts the descriptor; plain files and /dev/null never block."""
    with select.epoll() as poll:
        try:
            poll.register(source, select.EPOLLIN)
        except PermissionError:
            return False
    return True


class Sink:
    """Writer of whole lines that waits for a slow reader."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._writer: asyncio.StreamWriter | None = None

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        file = os.fdopen(self._descriptor, "wb", buffering=0, closefd=False)
        # asyncio refuses plain files, which never block: send() writes to them directly.
        with suppress(ValueError):
            transport, protocol = await loop.connect_write_pipe(
                lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), file
            )
            self._writer = asyncio.StreamWriter(transport, protocol, None, loop)

    async def send(self, line: bytes) -> None:
        """Write one line.

        Raises:
            OSError: the reader has closed its end.
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
