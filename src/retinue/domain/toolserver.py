"""MCP servers that a member is given tools by, and the names under which it is given them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

PREFIX = "mcp__"
BETWEEN = "__"
EVERY = "*"
VARIABLE = "RETINUE_VARIABLE_"  # before the name of what a child is handed for its servers
LONGEST_NAME = 64  # of a tool, as the strictest vendor takes it
LONGEST_SERVER = 32

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, kw_only=True)
class ToolServer:
    """One server: a program that is run inside the child's boundary, or an address.

    Values of its environment and headers may refer to variables of the steward as ${NAME}; what
    those hold is in no contract.
    """

    name: str
    argv: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    paths: tuple[str, ...] = ()  # that it needs besides the system's, shown read-only
    url: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    allowed_tools: tuple[str, ...] | None = None  # by its own names for them; None: all
    exclude_tools: tuple[str, ...] = ()
    timeout_ms: int = 60_000  # of one call

    @property
    def every_tool(self) -> str:
        """What a contract says that grants all of its tools."""
        return f"{PREFIX}{self.name}{BETWEEN}{EVERY}"

    @property
    def references(self) -> frozenset[str]:
        """The variables that somebody has to look up for it."""
        values = (value for _, value in (*self.environment, *self.headers))
        return frozenset(name for value in values for name in _REFERENCE.findall(value))

    def offers(self, tool: str) -> bool:
        """Whether its configuration lets a member see this tool of it."""
        chosen = self.allowed_tools is None or tool in self.allowed_tools
        return chosen and tool not in self.exclude_tools


def server_in(tool: str) -> str | None:
    """The server that a tool's name speaks of; None where it speaks of none."""
    if not tool.startswith(PREFIX):
        return None
    name, between, rest = tool.removeprefix(PREFIX).partition(BETWEEN)
    return name if name and between and rest else None


def grants(allowed: Collection[str], tool: str) -> bool:
    """Whether a list of tools has this one in it, by name or with all of its server's."""
    server = server_in(tool)
    return tool in allowed or (
        server is not None and f"{PREFIX}{server}{BETWEEN}{EVERY}" in allowed
    )


def is_wanted(allowed: Iterable[str], server: ToolServer) -> bool:
    """Whether any tool of this server is in the list."""
    return any(server_in(tool) == server.name for tool in allowed)


def offered_names(server: str, tools: Iterable[str]) -> dict[str, str]:
    """The name under which a member is given each tool: fit for every vendor, and no other's.

    One that is fit as it is keeps it: whoever granted it meant this one. One that is too long, or
    not the first that would be called so, ends in a mark made of the name that it had.
    """
    names: dict[str, str] = {}
    for tool in sorted(tools, key=lambda tool: _UNFIT.search(tool) is not None):
        name = f"{PREFIX}{server}{BETWEEN}{_UNFIT.sub('_', tool)}"
        if len(name) > LONGEST_NAME or name in names.values() or name.endswith(BETWEEN):
            mark = hashlib.sha256(tool.encode("utf-8", "replace")).hexdigest()[:8]
            name = f"{name[: LONGEST_NAME - len(mark) - 1]}_{mark}"
        if name not in names.values():
            names[tool] = name
    return names


def fits_header(value: str) -> bool:
    """Whether a header can hold it, and stays one."""
    return value.isascii() and value.isprintable()


def filled(value: str, variables: Mapping[str, str]) -> str:
    """The value with what its references stand for.

    Raises:
        KeyError: a variable is not there.
    """
    return _REFERENCE.sub(lambda found: variables[found[1]], value)
