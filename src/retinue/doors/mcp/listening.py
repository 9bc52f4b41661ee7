"""The server over HTTP: where it listens, and for whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp.server.lowlevel import Server

from retinue.delegating.desk import Choice
from retinue.doors.addresses import LOOPBACK, bracketed, is_loopback, listen
from retinue.doors.mcp import http
from retinue.doors.mcp.cuts import Cuts
from retinue.doors.mcp.running import run


@dataclass(frozen=True, kw_only=True)
class Address:
    host: str
    port: int
    names: Sequence[str]  # further hosts by which clients may call it


def run_http(
    root: Path, choice: Choice, address: Address, say: Callable[[str, Path], None]
) -> None:
    """Clients have been served over HTTP; where was said as soon as it was known.

    Raises:
        BadInput: nobody can listen there, or not without a token.
    """
    token = http.read_token(root, make=is_loopback(address.host))
    listener = listen(address.host, address.port)
    shown = bracketed(address.host)
    hosts = (*LOOPBACK, shown, *address.names)

    async def serving(server: Server[Any], cuts: Cuts) -> None:
        port = listener.getsockname()[1]
        say(f"http://{shown}:{port}{http.PATH}", root / http.TOKEN_FILE)
        await http.serve(server, cuts, listener, token, hosts)

    with listener:
        run(root, choice, serving)
