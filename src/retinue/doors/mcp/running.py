"""A server from its start to its end."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from mcp.server.lowlevel import Server

from retinue.delegating.calls import Calls
from retinue.delegating.desk import Choice, Desk
from retinue.delegating.own import OwnDesk
from retinue.doors.cli import render
from retinue.doors.mcp import stdio
from retinue.doors.mcp.cuts import Cuts
from retinue.doors.mcp.link import Link
from retinue.doors.mcp.reading import InForce
from retinue.doors.mcp.server import make_server
from retinue.steward.client import is_parents

Serving = Callable[[Server[Any], Cuts], Awaitable[None]]


def run(root: Path, choice: Choice, serving: Serving = stdio.serve) -> None:
    """Whoever came has been served, over standard input and output unless told otherwise."""

    async def serve() -> None:
        link, cuts = Link(root), Cuts()
        desk = OwnDesk(link.call) if is_parents(root) else Desk(link.call, choice)
        in_force = InForce(root, choice, desk)
        calls = Calls(desk, lambda: [each.name for each in in_force.terms.types])
        try:
            await in_force.read()
            render.warn({"warnings": in_force.warnings})
            link.close()  # a server that nobody uses keeps no steward from its end
            await serving(make_server(calls, in_force, cuts), cuts)
        finally:
            await calls.close()
            link.close()

    gc.freeze()
    gc.enable()  # a short command does without, a server cannot
    asyncio.run(serve())
