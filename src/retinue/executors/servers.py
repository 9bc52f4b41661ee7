"""The MCP servers of one member: what they offer it, and what becomes of its calls."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from retinue.domain.toolserver import VARIABLE, ToolServer, filled, fits_header, offered_names
from retinue.executors.files import Impossible
from retinue.executors.programs import Program
from retinue.executors.toolbox import Note, Toolbox
from retinue.settings import PASSED_ON
from retinue.version import VERSION
from retinue.wire import rpc

START_SECONDS = 30.0
MOST_STARTS = 3
MOST_TOOLS = 128  # of one server
MOST_PAGES = 32
MOST_SHOWN = 15_000  # characters of each end of what a tool gave
KNOWN = (*PASSED_ON, "TMPDIR")  # what a server is told of its surroundings, besides its own


class Link(Protocol):
    """One conversation with a server, from its start to its end."""

    over: str  # how it ended, once it has

    async def open(self) -> None: ...

    async def exchange(self, message: rpc.Message) -> rpc.Message: ...

    def tell(self, message: rpc.Message) -> None: ...

    @property
    def remark(self) -> str: ...

    async def close(self) -> None: ...


class Server:
    """One server, started again where it ended, a few times."""

    def __init__(self, terms: ToolServer, link: Callable[[], Link]) -> None:
        self.terms = terms
        self._make = link
        self._link: Link | None = None
        self._numbers = count(1)
        self._meta: rpc.Message = {}  # what each request carries, where the server wants that
        self._starts = 0

    async def open(self) -> list[rpc.Page]:
        """It is at work; what it offers.

        Raises:
            Failed, OSError: it is not.
        """
        await self._start()
        pages: list[rpc.Page] = []
        cursor = ""
        while len(pages) < MOST_PAGES:
            found = await self._ask(rpc.LIST, rpc.page_after(cursor), START_SECONDS)
            pages.append(rpc.tools_in(found))
            cursor = pages[-1].cursor
            if not cursor:
                break
        return pages

    async def call(self, tool: str, arguments: Mapping[str, Any], seconds: float) -> rpc.Said:
        """What a tool of it gave.

        Raises:
            Failed, OSError: it gave nothing.
        """
        if self._link is None or self._link.over:
            await self._start()
        return rpc.said_in(await self._ask(rpc.CALL, rpc.calling(tool, arguments), seconds))

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()

    async def _start(self) -> None:
        await self.close()
        if self._starts == MOST_STARTS:
            raise rpc.Failed(f"it was started {MOST_STARTS} times, and is not started again")
        self._starts += 1
        self._meta = {}
        self._link = self._make()
        await self._link.open()
        try:
            await self._ask(rpc.INITIALIZE, rpc.opening(VERSION), START_SECONDS)
        except rpc.Failed:
            if self._link.over:
                raise
            self._meta = rpc.envelope(VERSION)
            await self._ask(rpc.DISCOVER, {}, START_SECONDS)
        else:
            self._link.tell(rpc.notice(rpc.READY))

    async def _ask(self, method: str, params: rpc.Message, seconds: float) -> rpc.Message:
        assert self._link is not None, "it was started"
        number = next(self._numbers)
        message = rpc.request(number, method, params, self._meta)
        try:
            async with asyncio.timeout(seconds):
                return rpc.result_of(await self._link.exchange(message))
        except TimeoutError:
            self._link.tell(rpc.cancelled(number))
            silence = f"it gave no answer to {method} within {seconds:g} seconds"
            raise rpc.Failed(silence + self._link.remark) from None
        except asyncio.CancelledError:
            self._link.tell(rpc.cancelled(number))
            raise


class Servers:
    """All of a member's. Their tools stand in its box, behind the same gate as every other."""

    def __init__(
        self, servers: Sequence[Server], box: Toolbox, left: Callable[[], float], note: Note
    ) -> None:
        self._servers = servers
        self._box = box
        self._left = left  # seconds until the deadline
        self._note = note

    async def open(self) -> list[str]:
        """Whatever can be had is in the box; in words for the member, what cannot."""
        told = await asyncio.gather(*map(self._bring, self._servers))
        return [line for lines in told for line in lines]

    async def close(self) -> None:
        await asyncio.gather(*(server.close() for server in self._servers))

    async def _bring(self, server: Server) -> list[str]:
        name = server.terms.name
        try:
            async with asyncio.timeout(min(START_SECONDS, max(0.1, self._left()))):
                pages = await server.open()
        except (rpc.Failed, OSError, ValueError) as fault:
            await server.close()
            why = f"the MCP server {name} cannot be used: {_sentence(fault)}"
            self._note(server.terms.every_tool, why)
            return [f"{why}. Do without its tools."]
        listed = {tool.name: tool for page in pages for tool in page.tools}
        tools = [tool for tool in listed if server.terms.offers(tool)]
        for tool, offered in offered_names(name, tools[:MOST_TOOLS]).items():
            known = replace(listed[tool], name=offered)
            self._box.add(known, self._body(server, tool), checked=False)
        unfit = [why for page in pages for why in page.unfit]
        if len(tools) > MOST_TOOLS:
            unfit.append(f"{len(tools) - MOST_TOOLS} more than {MOST_TOOLS} tools")
        return [f"Left out of the MCP server {name}: {'; '.join(unfit[:20])}."] if unfit else []

    def _body(self, server: Server, tool: str) -> Callable[..., Awaitable[str]]:
        async def use(**arguments: Any) -> str:
            seconds = min(server.terms.timeout_ms / 1000, max(0.1, self._left()))
            try:
                said = await server.call(tool, arguments, seconds)
            except (rpc.Failed, OSError, ValueError) as fault:
                raise Impossible(
                    f"the MCP server {server.terms.name}: {_sentence(fault)}"
                ) from None
            if said.failed:
                raise Impossible(_clipped(said.text) or "the tool failed, and did not say why")
            return _clipped(said.text) or "[done; it gave nothing]"

        return use


def servers_of(
    terms: Sequence[ToolServer], home: Path, environment: Mapping[str, str]
) -> list[Server]:
    """The servers of a member that works in this folder; none is started yet."""
    return [Server(each, _link(each, home, environment)) for each in terms]


def _link(terms: ToolServer, home: Path, environment: Mapping[str, str]) -> Callable[[], Link]:
    handed = {
        name.removeprefix(VARIABLE): value
        for name, value in environment.items()
        if name.startswith(VARIABLE)
    }

    def made() -> Link:
        try:
            own = {name: filled(value, handed) for name, value in terms.environment}
            headers = {name: filled(value, handed) for name, value in terms.headers}
        except KeyError as missing:
            raise rpc.Failed(f"its variable {missing.args[0]} is not set any more") from None
        for name, value in headers.items():
            if not fits_header(value):  # whoever sent it would tell what it is
                raise rpc.Failed(f"its header {name} has a variable in it that no header can hold")
        if terms.url:
            addresses = importlib.import_module("retinue.executors.addresses")
            at: Link = addresses.Address(terms.url, headers, terms.timeout_ms / 1000)
            return at
        known = {name: environment[name] for name in KNOWN if name in environment}
        return Program(terms.argv, home, known | own)

    return made


def _sentence(fault: Exception) -> str:
    if isinstance(fault, TimeoutError):
        return f"it did not start within {START_SECONDS:g} seconds"
    if isinstance(fault, FileNotFoundError):
        return f"{fault.filename} cannot be seen from here; what it needs belongs into its paths"
    return str(fault)


def _clipped(text: str) -> str:
    cut = len(text) - 2 * MOST_SHOWN
    if cut <= 0:
        return text
    return f"{text[:MOST_SHOWN]}\n[{cut} characters left out]\n{text[-MOST_SHOWN:]}"
