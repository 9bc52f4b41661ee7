"""MCP servers of a member, and the names of their tools."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

PREFIX = "mcp__"
BETWEEN = "__"
EVERY = "*"
VARIABLE = "RETINUE_VARIABLE_"  # prefix of variables that a child receives for its servers
LONGEST_NAME = 64  # characters of a tool's name; the limit of the strictest vendor
LONGEST_SERVER = 32

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, kw_only=True)
class ToolServer:
    """An MCP server: a program that runs inside the child's boundary, or a URL.

    Values of `environment` and `headers` may refer to variables of the steward as ${NAME}. The
    contract stores only the reference, never the value.
    """

    name: str
    argv: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    paths: tuple[str, ...] = ()  # further paths that it may read
    url: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    allowed_tools: tuple[str, ...] | None = None  # the server's own names; None: all
    exclude_tools: tuple[str, ...] = ()
    timeout_ms: int = 60_000  # of one call

    @property
    def every_tool(self) -> str:
        """Name in a contract that grants all tools of this server."""
        return f"{PREFIX}{self.name}{BETWEEN}{EVERY}"

    @property
    def references(self) -> frozenset[str]:
        """Names of the variables that its values refer to."""
        values = (value for _, value in (*self.environment, *self.headers))
        return frozenset(name for value in values for name in find_references(value))

    def allows_tool(self, tool: str) -> bool:
        """Return whether the server's configuration exposes this tool."""
        chosen = self.allowed_tools is None or tool in self.allowed_tools
        return chosen and tool not in self.exclude_tools


def find_references(value: str) -> frozenset[str]:
    """Return the variables that a value refers to as ${NAME}."""
    return frozenset(_REFERENCE.findall(value))


def find_server(tool: str) -> str | None:
    """Return the server in a tool's name; None for a built-in tool."""
    if not tool.startswith(PREFIX):
        return None
    name, between, rest = tool.removeprefix(PREFIX).partition(BETWEEN)
    return name if name and between and rest else None


def is_tool_granted(allowed: Collection[str], tool: str) -> bool:
    """Return whether `allowed` contains the tool, by name or by its server's wildcard."""
    server = find_server(tool)
    return tool in allowed or (
        server is not None and f"{PREFIX}{server}{BETWEEN}{EVERY}" in allowed
    )


def is_wanted(allowed: Iterable[str], server: ToolServer) -> bool:
    """Return whether `allowed` contains any tool of this server."""
    return any(find_server(tool) == server.name for tool in allowed)


def make_tool_names(server: str, tools: Iterable[str]) -> dict[str, str]:
    """Map each tool of a server to a unique name that every vendor accepts.

    A valid name is kept, because contracts grant tools by it. A name that is too long or already
    taken gets a suffix made from a hash of the original.
    """
    names: dict[str, str] = {}
    # Valid names first, so that no cleaned-up name takes theirs.
    for tool in sorted(tools, key=lambda tool: _UNFIT.search(tool) is not None):
        name = f"{PREFIX}{server}{BETWEEN}{_UNFIT.sub('_', tool)}"
        if len(name) > LONGEST_NAME or name in names.values() or name.endswith(BETWEEN):
            mark = hashlib.sha256(tool.encode("utf-8", "replace")).hexdigest()[:8]
            name = f"{name[: LONGEST_NAME - len(mark) - 1]}_{mark}"
        if name not in names.values():
            names[tool] = name
    return names


def is_valid_header(value: str) -> bool:
    """Return whether the value is safe in an HTTP header; a line end would start another one."""
    return value.isascii() and value.isprintable()


def fill_references(value: str, variables: Mapping[str, str]) -> str:
    """Replace each ${NAME} by the variable's value.

    Raises:
        KeyError: a variable is not set.
    """
    return _REFERENCE.sub(lambda found: variables[found[1]], value)
