"""A server from its start to its end."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

from retinue.delegating.calls import Calls
from retinue.delegating.desk import Choice, Desk
from retinue.delegating.terms import read_terms
from retinue.doors.mcp import stdio
from retinue.doors.mcp.cuts import Cuts
from retinue.doors.mcp.link import Link
from retinue.doors.mcp.server import make_server


def run_stdio(root: Path, choice: Choice) -> None:
    """One client has been served over standard input and output."""
    terms = read_terms(root, choice.config_text, choice.config_name)

    async def serve() -> None:
        link, cuts = Link(root), Cuts()
        calls = Calls(Desk(link, choice))
        try:
            await stdio.serve(make_server(calls, terms, cuts), cuts)
        finally:
            await calls.close()
            await link.close()

    _settle_in()
    asyncio.run(serve())


def _settle_in() -> None:
    """Garbage is collected again, which a short command does without."""
    gc.freeze()
    gc.enable()
