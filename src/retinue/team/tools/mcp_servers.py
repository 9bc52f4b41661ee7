"""MCP servers of one member: start, tool registration, calls and shutdown.

This is a client of our own, with mcp_messages, mcp_stdio and mcp_http. A child that starts a server
and calls a tool has 3.7 MB of private memory and takes 5 ms of CPU time. With the official SDK
(mcp 2.3, imported in that child only) it is 50.5 MB and 350 ms. The SDK also holds a line of any
length in memory, while servers here are untrusted, and is an optional dependency.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from retinue.core.tool_servers import (
    VARIABLE,
    ToolServer,
    fill_references,
    is_valid_header,
    make_tool_names,
)
from retinue.settings import PASSED_ON
from retinue.team.tools import mcp_messages
from retinue.team.tools.file_tools import ToolError
from retinue.team.tools.mcp_stdio import StdioConnection
from retinue.team.tools.tool_registry import Note, Toolbox
from retinue.version import VERSION

START_SECONDS = 30.0
MOST_STARTS = 3
MOST_TOOLS = 128  # of one server
MOST_PAGES = 32
MOST_SHOWN = 15_000  # characters shown of each end of a tool's output
KNOWN = (*PASSED_ON, "TMPDIR")  # variables of the child that every server gets


class ToolServerConnection(Protocol):
    """Connection to a server."""

    over: str  # how it ended; empty while it is open

    async def open(self) -> None: ...

    async def send_request(self, message: mcp_messages.Message) -> mcp_messages.Message: ...

    def tell(self, message: mcp_messages.Message) -> None: ...

    @property
    def remark(self) -> str: ...

    async def close(self) -> None: ...


class McpServerClient:
    """Client of one server, which it restarts a limited number of times."""

    def __init__(self, terms: ToolServer, link: Callable[[], ToolServerConnection]) -> None:
        self.terms = terms
        self._make = link
        self._link: ToolServerConnection | None = None
        self._numbers = count(1)
        self._meta: mcp_messages.Message = {}  # sent with each request
        self._starts = 0

    async def open(self) -> list[mcp_messages.ToolPage]:
        """Start the server and return its tools.

        Raises:
            McpError, OSError: it cannot be used.
        """
        await self._start()
        pages: list[mcp_messages.ToolPage] = []
        cursor = ""
        # Bounded: a hostile server could send pages for ever.
        while len(pages) < MOST_PAGES:
            found = await self._ask(
                mcp_messages.LIST, mcp_messages.build_list_params(cursor), START_SECONDS
            )
            pages.append(mcp_messages.parse_tools(found))
            cursor = pages[-1].cursor
            if not cursor:
                break
        return pages

    async def call(
        self, tool: str, arguments: Mapping[str, Any], seconds: float
    ) -> mcp_messages.ToolOutput:
        """Call a tool and return its output; restart a server that has ended.

        Raises:
            McpError, OSError: there is no output.
        """
        if self._link is None or self._link.over:
            await self._start()
        return mcp_messages.parse_output(
            await self._ask(
                mcp_messages.CALL, mcp_messages.build_call_params(tool, arguments), seconds
            )
        )

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()

    async def _start(self) -> None:
        await self.close()
        if self._starts == MOST_STARTS:
            raise mcp_messages.McpError(
                f"it was started {MOST_STARTS} times, and is not started again"
            )
        self._starts += 1
        self._meta = {}
        self._link = self._make()
        await self._link.open()
        # Try the older handshake first; a server that refuses it speaks the stateless protocol.
        try:
            await self._ask(
                mcp_messages.INITIALIZE,
                mcp_messages.build_initialize_params(VERSION),
                START_SECONDS,
            )
        except mcp_messages.McpError:
            if self._link.over:
                raise
            self._meta = mcp_messages.build_envelope(VERSION)
            await self._ask(mcp_messages.DISCOVER, {}, START_SECONDS)
        else:
            self._link.tell(mcp_messages.make_notice(mcp_messages.READY))

    async def _ask(
        self, method: str, params: mcp_messages.Message, seconds: float
    ) -> mcp_messages.Message:
        assert self._link is not None, "it was started"
        number = next(self._numbers)
        message = mcp_messages.request(number, method, params, self._meta)
        try:
            async with asyncio.timeout(seconds):
                return mcp_messages.read_result(await self._link.send_request(message))
        except TimeoutError:
            self._link.tell(mcp_messages.make_cancel_notice(number))
            silence = f"it gave no answer to {method} within {seconds:g} seconds"
            raise mcp_messages.McpError(silence + self._link.remark) from None
        except asyncio.CancelledError:
            self._link.tell(mcp_messages.make_cancel_notice(number))
            raise


class MemberServers:
    """All servers of a member. Their tools are in its toolbox and checked like all others."""

    def __init__(
        self,
        servers: Sequence[McpServerClient],
        toolbox: Toolbox,
        left: Callable[[], float],
        note: Note,
    ) -> None:
        self._servers = servers
        self._toolbox = toolbox
        self._left = left  # seconds until the deadline
        self._note = note

    async def open(self) -> list[str]:
        """Start the servers and add their tools; return messages for the member on failures."""
        told = await asyncio.gather(*map(self._open_server, self._servers))
        return [line for lines in told for line in lines]

    async def close(self) -> None:
        await asyncio.gather(*(server.close() for server in self._servers))

    async def _open_server(self, server: McpServerClient) -> list[str]:
        name = server.terms.name
        try:
            async with asyncio.timeout(min(START_SECONDS, max(0.1, self._left()))):
                pages = await server.open()
        except (mcp_messages.McpError, OSError, ValueError) as fault:
            await server.close()
            why = f"the MCP server {name} cannot be used: {_describe_fault(fault)}"
            self._note(server.terms.every_tool, why)
            return [f"{why}. Do without its tools."]
        listed = {tool.name: tool for page in pages for tool in page.tools}
        tools = [tool for tool in listed if server.terms.allows_tool(tool)]
        for tool, offered in make_tool_names(name, tools[:MOST_TOOLS]).items():
            known = replace(listed[tool], name=offered)
            self._toolbox.add(known, self._make_body(server, tool), checked=False)
        unfit = [why for page in pages for why in page.unfit]
        if len(tools) > MOST_TOOLS:
            unfit.append(f"{len(tools) - MOST_TOOLS} more than {MOST_TOOLS} tools")
        return [f"Left out of the MCP server {name}: {'; '.join(unfit[:20])}."] if unfit else []

    def _make_body(self, server: McpServerClient, tool: str) -> Callable[..., Awaitable[str]]:
        async def use(**arguments: Any) -> str:
            seconds = min(server.terms.timeout_ms / 1000, max(0.1, self._left()))
            try:
                said = await server.call(tool, arguments, seconds)
            except (mcp_messages.McpError, OSError, ValueError) as fault:
                raise ToolError(
                    f"the MCP server {server.terms.name}: {_describe_fault(fault)}"
                ) from None
            if said.failed:
                raise ToolError(_truncate_text(said.text) or "the tool failed, and did not say why")
            return _truncate_text(said.text) or "[done; it gave nothing]"

        return use


def make_servers(
    terms: Sequence[ToolServer], home: Path, environment: Mapping[str, str]
) -> list[McpServerClient]:
    """Return clients for the servers of a member; none is started yet."""
    return [McpServerClient(each, _make_connector(each, home, environment)) for each in terms]


def _make_connector(
    terms: ToolServer, home: Path, environment: Mapping[str, str]
) -> Callable[[], ToolServerConnection]:
    handed = {
        name.removeprefix(VARIABLE): value
        for name, value in environment.items()
        if name.startswith(VARIABLE)
    }

    def make_connection() -> ToolServerConnection:
        try:
            own = {name: fill_references(value, handed) for name, value in terms.environment}
            headers = {name: fill_references(value, handed) for name, value in terms.headers}
        except KeyError as missing:
            raise mcp_messages.McpError(
                f"its variable {missing.args[0]} is no longer set"
            ) from None
        # Checked here, because the error of http.client would show the secret value.
        for name, value in headers.items():
            if not is_valid_header(value):
                raise mcp_messages.McpError(
                    f"its header {name} has a variable with characters that no header can hold"
                )
        # A late import: http.client is needed only for servers at a URL.
        if terms.url:
            addresses = importlib.import_module("retinue.team.tools.mcp_http")
            at: ToolServerConnection = addresses.Address(
                terms.url, headers, terms.timeout_ms / 1000
            )
            return at
        known = {name: environment[name] for name in KNOWN if name in environment}
        return StdioConnection(terms.argv, home, known | own)

    return make_connection


def _describe_fault(fault: Exception) -> str:
    if isinstance(fault, TimeoutError):
        return f"it did not start within {START_SECONDS:g} seconds"
    if isinstance(fault, FileNotFoundError):
        return f"{fault.filename} is not visible here; add what the server needs to its paths"
    return str(fault)


def _truncate_text(text: str) -> str:
    cut = len(text) - 2 * MOST_SHOWN
    if cut <= 0:
        return text
    return f"{text[:MOST_SHOWN]}\n[{cut} characters left out]\n{text[-MOST_SHOWN:]}"
