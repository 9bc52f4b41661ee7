"""Startup and shutdown of the MCP server."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from mcp.server.lowlevel import Server

from retinue.cli import render
from retinue.client.blocking_client import is_parents
from retinue.delegation.delegation_calls import DelegationCalls
from retinue.delegation.task_session import ChildSession, Choice, TaskSession
from retinue.mcp_server import stdio_transport
from retinue.mcp_server.cancelled_calls import CancelledCalls
from retinue.mcp_server.effective_limits import EffectiveLimits, StewardLink
from retinue.mcp_server.sdk_server import make_server
from retinue.trust import note_use

Serving = Callable[[Server[Any], CancelledCalls], Awaitable[None]]


def run(root: Path, choice: Choice, serving: Serving = stdio_transport.serve) -> None:
    """Run a server until its transport ends; the default transport is stdio."""

    async def serve() -> None:
        if not is_parents(root):
            note_use(root, os.environ)
        link = StewardLink(root)
        cuts = CancelledCalls()
        session = ChildSession(link.call) if is_parents(root) else TaskSession(link.call, choice)
        in_force = EffectiveLimits(root, choice, session)
        calls = DelegationCalls(session, lambda: in_force.terms)
        try:
            await in_force.read()
            render.warn({"warnings": in_force.warnings})
            # An open connection would keep the steward running while this server is idle.
            link.close()
            await serving(make_server(calls, in_force, cuts), cuts)
        finally:
            await calls.close()
            link.close()

    # The command line runs without garbage collection, which suits short commands only.
    gc.freeze()
    gc.enable()
    asyncio.run(serve())
