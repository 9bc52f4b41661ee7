"""MCP server with a member's tools, for a coding agent of any make.

It speaks HTTP on the child's loopback and answers only with its token. The official SDK would
take more memory and start-up time than the whole team.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from retinue.core.conversation import Call, Tool
from retinue.team.tools.tool_registry import Toolbox, ToolResult
from retinue.version import VERSION

MOST_HEAD = 64 * 1024
MOST_BODY = 8 * 1024 * 1024
VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
NO_METHOD, INVALID = -32601, -32600
Json = dict[str, Any]


class _Refused(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class ToolboxServer:
    """Serves some tools of a toolbox.

    Args:
        select: returns which of the offered tools are served now.
        used: is called with each call and its result.
    """

    def __init__(
        self,
        toolbox: Toolbox,
        select: Callable[[Sequence[Tool]], list[Tool]],
        used: Callable[[Call, ToolResult], None],
    ) -> None:
        self._toolbox = toolbox
        self._select = select
        self._used = used
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self.token = secrets.token_hex(16)

    async def start(self) -> str:
        """Listen on a free port of the loopback; return the address."""
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", 0, limit=MOST_HEAD, backlog=16
        )
        port = self._server.sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}/mcp"

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._open:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while await self._answer_request(reader, writer):
                pass
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            pass  # the client is gone, or does not speak HTTP
        finally:
            self._open.discard(writer)
            writer.close()

    async def _answer_request(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer one request; return whether the connection stays open."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.rstrip("\r\n").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        try:
            body = await self._read_body(first.partition(" ")[0], headers, reader)
            answer = await self._handle(json.loads(body))
        except _Refused as refused:
            _write(writer, refused.status, None)
            await writer.drain()
            # The body of a refused request was not read.
            return False
        except (ValueError, RecursionError):
            answer = _make_error(None, -32700, "this is not JSON")
        _write(writer, 202 if answer is None else 200, answer)
        await writer.drain()
        return headers.get("connection", "").lower() != "close"

    async def _read_body(
        self, method: str, headers: Mapping[str, str], reader: asyncio.StreamReader
    ) -> bytes:
        given = headers.get("authorization", "").encode()
        if not hmac.compare_digest(given, f"Bearer {self.token}".encode()):
            raise _Refused(401)
        if method != "POST":
            raise _Refused(405)  # there is no stream of notifications to listen to
        length = headers.get("content-length", "")
        if not (length.isascii() and length.isdigit()):
            raise _Refused(411)
        if int(length) > MOST_BODY:
            raise _Refused(413)
        return await reader.readexactly(int(length))

    async def _handle(self, message: object) -> Json | None:
        if not isinstance(message, dict) or not isinstance(message.get("method"), str):
            # A response to a request of ours; there are none.
            return None if isinstance(message, dict) else _make_error(None, INVALID, "no request")
        if "id" not in message:
            return None
        number, method = message["id"], message["method"]
        params = message.get("params")
        given: Json = params if isinstance(params, dict) else {}
        match method:
            case "initialize":
                asked = given.get("protocolVersion")
                result: Json = {
                    "protocolVersion": asked if asked in VERSIONS else VERSIONS[0],
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "retinue", "version": VERSION},
                }
            case "tools/list":
                result = {"tools": [_describe(tool) for tool in self._list_tools()]}
            case "tools/call":
                result = await self._call(number, given)
            case "ping":
                result = {}
            case "resources/list":
                result = {"resources": []}
            case "prompts/list":
                result = {"prompts": []}
            case _:
                return _make_error(number, NO_METHOD, f"there is no method {method[:80]!a}")
        return {"jsonrpc": "2.0", "id": number, "result": result}

    def _list_tools(self) -> list[Tool]:
        return self._select(self._toolbox.offered)

    async def _call(self, number: object, params: Json) -> Json:
        name = str(params.get("name", ""))[:200]
        arguments = params.get("arguments")
        call = Call(
            id=f"retinue-{number}"[:80],
            tool=name,
            arguments=arguments if isinstance(arguments, dict) else {},
        )
        # A tool that is not served here is unknown here, even if the toolbox has it.
        if name not in {tool.name for tool in self._list_tools()}:
            found = ToolResult(text=f"error: there is no tool {name[:80]!a}")
        else:
            found = await self._toolbox.use(call)
        self._used(call, found)
        return {"content": [{"type": "text", "text": found.text}], "isError": not found.done}


def _describe(tool: Tool) -> Json:
    return {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": dict(tool.parameters),
    }


def _make_error(number: object, code: int, words: str) -> Json:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": words}}


def _write(writer: asyncio.StreamWriter, status: int, answer: Json | None) -> None:
    data = b"" if answer is None else json.dumps(answer).encode()
    lines = [f"HTTP/1.1 {status} {'OK' if status < 300 else 'Refused'}"]
    lines += [f"Content-Length: {len(data)}", *(["Content-Type: application/json"] if data else [])]
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
