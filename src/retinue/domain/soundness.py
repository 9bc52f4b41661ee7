"""Whether the terms of a delegation make sense: on their own, and beside those of its parent."""

from __future__ import annotations

from collections.abc import Sequence

from retinue.domain.boundary import ISOLATED, Boundary
from retinue.domain.contract import (
    MAX_DEPTH,
    MAX_RETRIES,
    REPORT_PATTERN,
    TOOLS,
    Contract,
    Team,
)
from retinue.domain.errors import BadInput
from retinue.domain.toolserver import server_in


def require_sound(contract: Contract) -> None:
    """The terms make sense on their own.

    Raises:
        BadInput: a term is unknown, out of range or contradicts another.
    """
    granted = contract.permissions
    if not contract.is_root:  # which may hand on what only its subagents have
        require_known_tools(granted.allowed_tools, contract.team)
    if not 0 <= granted.max_delegation_depth <= MAX_DEPTH:
        raise BadInput(
            f"max_delegation_depth {granted.max_delegation_depth} is out of range",
            code="invalid_contract",
            hint=f"0 to {MAX_DEPTH}",
        )
    if granted.can_spawn_children != (granted.max_delegation_depth > 0):
        raise BadInput(
            "can_spawn_children and max_delegation_depth contradict each other",
            code="invalid_contract",
            hint="allow children with a depth of at least 1, or neither",
        )
    if not 0 <= contract.execution.max_retries <= MAX_RETRIES:
        raise BadInput(
            f"max_retries {contract.execution.max_retries} is out of range",
            code="invalid_contract",
            hint=f"0 to {MAX_RETRIES}",
        )
    require_report_inside(contract.outputs.report_path_pattern)


def require_narrower(child: Contract, parent: Contract) -> None:
    """A subagent's own subagent gets no more than it has itself.

    Raises:
        BadInput: some term is wider than the parent's.
    """
    mine, theirs = parent.permissions, child.permissions
    extra = [tool for tool in theirs.allowed_tools if not parent.permits(tool)]
    wider = [
        (not mine.can_spawn_children, "its parent may not delegate"),
        (theirs.max_delegation_depth >= mine.max_delegation_depth, "the depth must shrink"),
        (bool(extra), f"tools its parent lacks: {', '.join(sorted(extra))}"),
        (
            child.execution.attempt_timeout_ms > parent.execution.attempt_timeout_ms,
            "more time than its parent has",
        ),
    ]
    for is_wider, why in wider:
        if is_wider:
            raise BadInput(f"a delegated contract can only narrow: {why}", code="contract_too_wide")


def require_reachable(team: Team, boundary: Boundary) -> None:
    """Whatever the team's servers are, they can be reached from behind this boundary.

    Raises:
        BadInput: one of them is elsewhere, and there is no network.
    """
    far = [server for server in team.servers if server.url]
    if far and boundary.mode == ISOLATED and boundary.network != "on":
        raise BadInput(
            f"the MCP server {far[0].name} is at an address, and subagents have no network",
            code="server_unreachable",
            hint="set subagent_network to on, or run the server with type stdio",
        )


def require_known_tools(tools: Sequence[str], team: Team | None) -> None:
    """Each tool is one that teams have, or a server of this one.

    Raises:
        BadInput: nobody has a tool of that name.
    """
    servers = team.servers if team is not None else ()
    names = {server.name for server in servers}
    for tool in tools:
        if tool in TOOLS or server_in(tool) in names:
            continue
        known = [*sorted(TOOLS), *sorted({server.every_tool for server in servers})]
        raise BadInput(
            f"unknown tool {tool[:40]!a}",
            code="unknown_tool",
            hint=f"known tools: {', '.join(known)}",
        )


def require_report_inside(pattern: str) -> None:
    """Raises:
    BadInput: the path leads out of the workspace, or nowhere.
    """
    parts = pattern.split("/")
    if pattern.startswith("/") or ".." in parts or "" in parts or "\0" in pattern:
        raise BadInput(
            f"report path {pattern[:80]!a} does not stay inside the workspace",
            code="invalid_contract",
            hint="use a relative path such as " + REPORT_PATTERN,
        )
