"""MCP transport for one client over standard input and output."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, cast

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.server.lowlevel import Server
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from retinue.delegation import tool_definitions
from retinue.mcp_server.cancelled_calls import CancelledCalls, find_cancelled_request
from retinue.mcp_server.jsonrpc_validation import (
    INVALID_REQUEST,
    MAX_LINE,
    TOO_LONG,
    JsonRpcError,
    read_line,
)

# Line reader and writer for standard input and output, with bounded buffers.

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


# Limits on open requests; small requests are refused by number only.
MOST_AT_ONCE = 512
MOST_BYTES_AT_ONCE = 4 * MAX_LINE
CHEAP_BYTES = 64 * 1024
BUSY = -32000
# After end of input: time for the open requests that do not block.
LAST_WORDS_SECONDS = 5.0
BLOCKING = (tool_definitions.SPAWN, tool_definitions.CONTINUE, tool_definitions.WAIT)


async def serve(server: Server[Any], cuts: CancelledCalls) -> None:
    """Serve the client until it closes its input, or until SIGTERM or SIGINT."""
    with claim_pipes() as (source, sink):
        serving = asyncio.current_task()
        assert serving is not None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, serving.cancel)
        with suppress(asyncio.CancelledError):
            out = Sink(sink)
            await out.open()
            await Conversation(server, cuts, await read_from(source), out).run()


@dataclass(frozen=True)
class OpenRequest:
    """Request that is not answered yet."""

    long: bool  # it may block
    size: int


class Conversation:
    """Message loop between the pipes and the SDK. It answers invalid messages itself."""

    def __init__(
        self, server: Server[Any], cuts: CancelledCalls, lines: StdioLines, sink: Sink
    ) -> None:
        self._server = server
        self._cuts = cuts
        self._lines = lines
        self._sink = sink
        self._open: dict[str, OpenRequest] = {}
        self._answered = asyncio.Event()

    async def run(self) -> None:
        inward, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outward, to_send = anyio.create_memory_object_stream[SessionMessage](0)
        async with anyio.create_task_group() as group:
            group.start_soon(self._write, to_send, group.cancel_scope)
            group.start_soon(self._read, inward)
            options = self._server.create_initialization_options()
            await self._server.run(received, outward, options)

    async def _read(self, inward: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        async with inward:
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                while (line := await self._lines.read_line()) is not None:
                    message = await self._parse_line(line)
                    if message is not None:
                        await inward.send(SessionMessage(message))
                await self._finish_pending()

    async def _parse_line(self, line: bytes | JsonRpcError) -> types.JSONRPCMessage | None:
        """Return the message on the line; if it is invalid, send the error and return None."""
        size = 0 if isinstance(line, JsonRpcError) else len(line)
        read = line if isinstance(line, JsonRpcError) else read_line(line)
        if isinstance(read, dict):
            # Before the SDK ends the call, so that the call can see why it was cancelled.
            self._cuts.note(read)
            # A cancelled request gets no answer.
            if (dropped := find_cancelled_request(read)) is not None:
                self._close(dropped)
            request = "method" in read and "id" in read
            if request and self._is_over_limit(size):
                busy = "too many requests at once, or too large ones"
                read = JsonRpcError(read["id"], BUSY, busy)
            else:
                try:
                    message = types.jsonrpc_message_adapter.validate_python(read, by_name=False)
                except ValidationError:
                    read = JsonRpcError(read.get("id"), INVALID_REQUEST, "Invalid request")
                else:
                    if request:
                        self._open[str(read["id"])] = OpenRequest(can_block(read), size)
                    return message
        if isinstance(read, JsonRpcError):
            await self._send(read.to_json())
        return None

    def _close(self, request: object) -> None:
        self._open.pop(str(request), None)
        self._answered.set()

    def _is_over_limit(self, size: int) -> bool:
        """Return whether one more request of this size exceeds the limits."""
        held = sum(each.size for each in self._open.values())
        large = size > CHEAP_BYTES and held + size > MOST_BYTES_AT_ONCE
        return large or len(self._open) >= MOST_AT_ONCE

    async def _write(
        self, to_send: MemoryObjectReceiveStream[SessionMessage], scope: anyio.CancelScope
    ) -> None:
        async with to_send:
            async for each in to_send:
                document = each.message.model_dump(mode="json", by_alias=True, exclude_unset=True)
                # The client has closed its end: stop serving.
                if not await self._send(document):
                    scope.cancel()
                if "method" not in document:
                    self._close(document["id"])

    async def _send(self, document: dict[str, Any]) -> bool:
        try:
            text = json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
            await self._sink.send(text.encode() + b"\n")
        except OSError:
            return False
        return True

    async def _finish_pending(self) -> None:
        """Wait for the answers to open requests, except those that may block."""
        with anyio.move_on_after(LAST_WORDS_SECONDS):
            while not all(each.long for each in self._open.values()):
                self._answered.clear()
                await self._answered.wait()


def can_block(request: dict[str, Any]) -> bool:
    """Return whether the request may block until subagents have ended."""
    params = request.get("params") or {}
    name = tool_definitions.STANDARD_NAMES.get(str(params.get("name")), params.get("name"))
    arguments = params.get("arguments") or {}
    blocks = request.get("method") == "tools/call" and name in BLOCKING
    in_background = isinstance(arguments, dict) and arguments.get("background") is True
    return blocks and not in_background
