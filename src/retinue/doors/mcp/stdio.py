"""One client over standard input and output."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.server.lowlevel import Server
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from retinue.delegating import tools
from retinue.doors.mcp.cuts import Cuts, taken_back
from retinue.doors.mcp.incoming import INVALID_REQUEST, MAX_LINE, Wrong, read_line
from retinue.doors.mcp.pipes import Lines, Sink, claimed, read_from

MOST_AT_ONCE = 512
MOST_BYTES_AT_ONCE = 4 * MAX_LINE
CHEAP_BYTES = 64 * 1024
BUSY = -32000
LAST_WORDS_SECONDS = 5.0
BLOCKING = (tools.SPAWN, tools.CONTINUE, tools.WAIT)


async def serve(server: Server[Any], cuts: Cuts) -> None:
    """The client has been served until it left, or until this process was told to end."""
    with claimed() as (source, sink):
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
class Opened:
    """A request that is not answered yet."""

    long: bool  # it may take long
    size: int


class Conversation:
    """Messages in and out; those that are none are answered before the SDK sees them."""

    def __init__(self, server: Server[Any], cuts: Cuts, lines: Lines, sink: Sink) -> None:
        self._server = server
        self._cuts = cuts
        self._lines = lines
        self._sink = sink
        self._open: dict[str, Opened] = {}
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
                while (line := await self._lines.next()) is not None:
                    message = await self._taken(line)
                    if message is not None:
                        await inward.send(SessionMessage(message))
                await self._last_words()

    async def _taken(self, line: bytes | Wrong) -> types.JSONRPCMessage | None:
        """The message on the line, if it is one; else whoever sent it has been told."""
        size = 0 if isinstance(line, Wrong) else len(line)
        read = [line] if isinstance(line, Wrong) else read_line(line)
        if isinstance(read, dict):
            self._cuts.note(read)
            if (dropped := taken_back(read)) is not None:
                self._close(dropped)  # it gets no answer
            request = "method" in read and "id" in read
            if request and self._too_many(size):
                read = [Wrong(read["id"], BUSY, "too many requests at once, or too large ones")]
            else:
                try:
                    message = types.jsonrpc_message_adapter.validate_python(read, by_name=False)
                except ValidationError:
                    read = [Wrong(read.get("id"), INVALID_REQUEST, "Invalid request")]
                else:
                    if request:
                        self._open[str(read["id"])] = Opened(may_take_long(read), size)
                    return message
        for wrong in read or ():
            await self._send(wrong.to_json())
        return None

    def _close(self, request: object) -> None:
        self._open.pop(str(request), None)
        self._answered.set()

    def _too_many(self, size: int) -> bool:
        """Whether one more would be beyond what anybody needs."""
        held = sum(each.size for each in self._open.values())
        large = size > CHEAP_BYTES and held + size > MOST_BYTES_AT_ONCE
        return large or len(self._open) >= MOST_AT_ONCE

    async def _write(
        self, to_send: MemoryObjectReceiveStream[SessionMessage], scope: anyio.CancelScope
    ) -> None:
        async with to_send:
            async for each in to_send:
                document = each.message.model_dump(mode="json", by_alias=True, exclude_unset=True)
                if not await self._send(document):
                    scope.cancel()  # nobody reads any more
                if "method" not in document:
                    self._close(document["id"])

    async def _send(self, document: dict[str, Any]) -> bool:
        try:
            text = json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
            await self._sink.send(text.encode() + b"\n")
        except OSError:
            return False
        return True

    async def _last_words(self) -> None:
        """What was asked before the input ended is answered, but for what may take long."""
        with anyio.move_on_after(LAST_WORDS_SECONDS):
            while not all(each.long for each in self._open.values()):
                self._answered.clear()
                await self._answered.wait()


def may_take_long(request: dict[str, Any]) -> bool:
    """Whether the request blocks until subagents have come to their end."""
    params = request.get("params") or {}
    name, arguments = params.get("name"), params.get("arguments") or {}
    blocks = request.get("method") == "tools/call" and name in BLOCKING
    in_background = isinstance(arguments, dict) and arguments.get("background") is True
    return blocks and not in_background
