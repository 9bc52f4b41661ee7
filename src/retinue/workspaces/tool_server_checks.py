"""Checks of MCP servers before a child starts them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from retinue.core.contract import Contract
from retinue.core.errors import BadInput
from retinue.core.tool_servers import VARIABLE, ToolServer, fill_references, is_valid_header


def require_ready(
    server: ToolServer, project: Path, variables: Mapping[str, str], search: str
) -> ToolServer:
    """Return the server with full paths after checking its program, files and variables.

    Raises:
        BadInput: something is missing.
    """
    for name in sorted(server.references):
        if name not in variables:
            raise _make_missing_error(
                server,
                f"needs the variable {name}, which the steward does not have",
                hint=f"set {name}, then run 'retinue steward stop'; the next steward reads it",
            )
    for name, value in server.headers:
        if not is_valid_header(fill_references(value, variables)):
            raise _make_missing_error(
                server,
                f"has a header {name} with a variable in it that no header can hold",
                hint="the variable must be printable ASCII text, without a line break at its end",
            )
    for path in server.paths:
        if not (project / path).exists():
            raise _make_missing_error(server, f"needs {path[:200]!a}, which does not exist")
    paths = tuple(os.path.realpath(project / path) for path in server.paths)
    return replace(server, argv=_find_command(server, project, search), paths=paths)


def list_lent_paths(contract: Contract) -> list[str]:
    """Return the paths that a child may read because its servers or coding agents need them."""
    agents = contract.agents
    lent = [path for agent in agents for path in agent.lent]
    logins = [path for agent in agents for path, _ in agent.credentials]
    return [path for server in contract.servers for path in server.paths] + lent + logins


def select_variables(contract: Contract, known: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a child's servers refer to, with a prefix."""
    wanted = sorted({name for server in contract.servers for name in server.references})
    # Without the prefix, other programs of the child would pick up the variables.
    return {f"{VARIABLE}{name}": known[name] for name in wanted if name in known}


def _find_command(server: ToolServer, project: Path, search: str) -> tuple[str, ...]:
    if not server.argv:
        return ()
    program, *rest = server.argv
    named = str(project / program) if "/" in program else program
    found = shutil.which(named, path=search)
    if found is None:
        raise _make_missing_error(
            server, f"needs the program {program[:200]!a}, which cannot be found"
        )
    return (found, *rest)


def _make_missing_error(server: ToolServer, what: str, hint: str = "") -> BadInput:
    return BadInput(
        f"the MCP server {server.name} {what}",
        code="server_not_ready",
        hint=hint or "paths are relative to the project, the folder that holds .retinue",
    )
