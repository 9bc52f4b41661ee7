"""MCP servers, before anybody is started who would start them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from retinue.domain.contract import Contract
from retinue.domain.errors import BadInput
from retinue.domain.toolserver import VARIABLE, ToolServer, filled, fits_header


def require_ready(
    server: ToolServer, project: Path, variables: Mapping[str, str], search: str
) -> ToolServer:
    """The server with full paths; its program, its files and its variables are there.

    Raises:
        BadInput: something is missing.
    """
    for name in sorted(server.references):
        if name not in variables:
            raise _missing(
                server,
                f"needs the variable {name}, which the steward does not have",
                hint=f"set {name}, then 'retinue steward stop': the next one knows it",
            )
    for name, value in server.headers:
        if not fits_header(filled(value, variables)):
            raise _missing(
                server,
                f"has a header {name} with a variable in it that no header can hold",
                hint="it must be printable ASCII text, without a line break even at its end",
            )
    for path in server.paths:
        if not (project / path).exists():
            raise _missing(server, f"needs {path[:200]!a}, which does not exist")
    paths = tuple(os.path.realpath(project / path) for path in server.paths)
    return replace(server, argv=_command(server, project, search), paths=paths)


def lent_to(contract: Contract) -> list[Path]:
    """What a child is shown of its parent's files: its context, and what its servers need."""
    needed = (path for server in contract.servers for path in server.paths)
    return [Path(path) for path in (*contract.context.paths, *needed)]


def handed_to(contract: Contract, known: Mapping[str, str]) -> dict[str, str]:
    """The variables that a child's servers refer to, under names that no program takes for its."""
    wanted = sorted({name for server in contract.servers for name in server.references})
    return {f"{VARIABLE}{name}": known[name] for name in wanted if name in known}


def _command(server: ToolServer, project: Path, search: str) -> tuple[str, ...]:
    if not server.argv:
        return ()
    program, *rest = server.argv
    named = str(project / program) if "/" in program else program
    found = shutil.which(named, path=search)
    if found is None:
        raise _missing(server, f"needs the program {program[:200]!a}, which cannot be found")
    return (found, *rest)


def _missing(server: ToolServer, what: str, hint: str = "") -> BadInput:
    return BadInput(
        f"the MCP server {server.name} {what}",
        code="server_not_ready",
        hint=hint or "paths are relative to the project, the folder that holds .retinue",
    )
