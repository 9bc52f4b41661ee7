"""Toolbox of a member: runs the tools that the contract allows and refuses all others."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from retinue.core.contract import Contract
from retinue.core.conversation import Call, Tool
from retinue.team.tools.command_tool import USUAL_SECONDS, run_command
from retinue.team.tools.file_tools import MemberFiles, ToolDenied, ToolError


def check_arguments(tool: Tool, arguments: Mapping[str, object]) -> dict[str, Any]:
    """Return the arguments, converted to the types of the tool's schema.

    More lenient than `delegation.tool_definitions`, because small models write numbers as text.

    Raises:
        ToolError: an argument is unknown, missing or of the wrong type; names the first.
    """
    return _check_members(tool.parameters, arguments, tool.name)


def _check_members(
    schema: Mapping[str, Any], given: Mapping[str, object], whose: str
) -> dict[str, Any]:
    takes = schema["properties"]
    required = schema["required"]
    if unknown := [name for name in given if name not in takes]:
        raise ToolError(f"{whose} takes {', '.join(takes)}; not {unknown[0][:80]!a}")
    if missing := [name for name in required if name not in given]:
        raise ToolError(f"{whose} needs {missing[0]}")
    # Some models send null for optional arguments that they leave out.
    return {
        name: _check_value(takes[name], value, name)
        for name, value in given.items()
        if value is not None or name in required
    }


def _check_value(schema: Mapping[str, Any], value: object, name: str) -> Any:
    match schema["type"], value:
        case "string", str():
            return value
        case "array", list():
            return [
                _check_value(schema["items"], each, f"{name}[{at}]")
                for at, each in enumerate(value)
            ]
        case "object", dict():
            return _check_members(schema, value, name)
        case "integer" | "number", int() | float() | str() if not isinstance(value, bool):
            return _parse_number(schema["type"], value, name)
    raise _make_type_error(schema["type"], name)


def _parse_number(kind: str, value: float | str, name: str) -> float:
    """Return a number; also from a string, since small models write numbers so."""
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise _make_type_error(kind, name) from None
    if not isfinite(number) or (kind == "integer" and not number.is_integer()):
        raise _make_type_error(kind, name)
    return int(number) if kind == "integer" else number


def _make_type_error(kind: str, name: str) -> ToolError:
    article = "an" if kind[0] in "aio" else "a"
    return ToolError(f"{name} should be {article} {kind}")


Body = Callable[..., Awaitable[str] | str]
Note = Callable[[str, str], None]  # tool, why it was refused

TEXT: dict[str, object] = {"type": "string"}
NUMBER: dict[str, object] = {"type": "number"}
WHOLE: dict[str, object] = {"type": "integer"}


def build_schema(required: Mapping[str, object], **optional: object) -> dict[str, object]:
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }


@dataclass(frozen=True, kw_only=True)
class ToolResult:
    """Result of a call, in words for the model."""

    text: str
    done: bool = False


@dataclass(frozen=True, kw_only=True)
class ToolEntry:
    """Tool in a toolbox."""

    tool: Tool
    body: Body
    checked: bool = True  # whether the toolbox validates arguments by the tool's schema


class Toolbox:
    """Tools of one member. Refusals are recorded, and say what is allowed instead."""

    def __init__(self, contract: Contract, note: Note) -> None:
        self._contract = contract
        self._note = note
        self._entries: dict[str, ToolEntry] = {}
        self._always: set[str] = set()
        self._withheld: dict[str, tuple[str, Note]] = {}

    def add(self, tool: Tool, body: Body, *, always: bool = False, checked: bool = True) -> None:
        """Add a tool; with `always` it needs no permission in the contract."""
        self._entries[tool.name] = ToolEntry(tool=tool, body=body, checked=checked)
        if always:
            self._always.add(tool.name)

    def hide_tools(self, names: Iterable[str], why: str, note: Note) -> None:
        """Hide these tools; a call of one is refused with `why` and recorded with `note`."""
        self._withheld |= dict.fromkeys(names, (why, note))

    @property
    def offered(self) -> list[Tool]:
        there = (entry for name, entry in self._entries.items() if name not in self._withheld)
        return [entry.tool for entry in there if self._is_granted(entry.tool.name)]

    async def use(self, call: Call) -> ToolResult:
        """Run a call; an error of the model or the tool becomes a result, never an exception."""
        entry = self._entries.get(call.tool)
        offered = ", ".join(tool.name for tool in self.offered)
        if call.tool in self._withheld:
            why, note = self._withheld[call.tool]
            note(call.tool, why)
            return ToolResult(text=f"refused: {why}; there are: {offered}")
        if entry is None:
            why = f"there is no tool {call.tool[:80]!a}; there are: {offered}"
            self._note(call.tool, why)
            return ToolResult(text=f"error: {why}")
        if not self._is_granted(call.tool):
            why = f"{call.tool} is not allowed by the contract; allowed are: {offered}"
            self._note(call.tool, why)
            return ToolResult(text=f"refused: {why}")
        if call.malformed:
            return ToolResult(text=f"error: the arguments are not a JSON object: {call.malformed}")
        try:
            arguments = (
                check_arguments(entry.tool, call.arguments) if entry.checked else call.arguments
            )
            given = entry.body(**arguments)
            return ToolResult(text=await given if inspect.isawaitable(given) else given, done=True)
        except ToolDenied as why:
            self._note(call.tool, str(why))
            return ToolResult(text=f"refused: {why}")
        except (ToolError, OSError) as why:
            return ToolResult(text=f"error: {_describe_fault(why)}")

    def _is_granted(self, name: str) -> bool:
        return name in self._always or self._contract.allows_tool(name)


def _describe_fault(why: ToolError | OSError) -> str:
    """Return the error in words for the model."""
    if isinstance(why, ToolError) or not why.strerror:
        return str(why)
    return f"{str(why.filename)[-200:]}: {why.strerror}" if why.filename else why.strerror


def _make_tool(name: str, description: str, parameters: dict[str, object]) -> Tool:
    return Tool(name=name, description=description, parameters=parameters)


# By the name of the MemberFiles method that implements it.
FILE_TOOLS = {
    "read": _make_tool(
        "read_file",
        "Read a text file of your workspace, of your context, or of a subagent of yours.",
        build_schema({"path": TEXT}, offset=WHOLE, limit=WHOLE),
    ),
    "write": _make_tool(
        "write_file",
        "Write a text file in your workspace; missing folders are created.",
        build_schema({"path": TEXT, "content": TEXT}),
    ),
    "edit": _make_tool(
        "edit_file",
        "Replace a passage that occurs exactly once in a file.",
        build_schema({"path": TEXT, "old": TEXT, "new": TEXT}),
    ),
    "listing": _make_tool(
        "list_files",
        "List the files below a folder, by an optional name pattern.",
        build_schema({}, path=TEXT, pattern=TEXT),
    ),
    "search": _make_tool(
        "search_files",
        "Find the lines of files that match a regular expression.",
        build_schema({"pattern": TEXT}, path=TEXT, files=TEXT),
    ),
}
RUN = _make_tool(
    "run_command",
    "Run a shell command in your workspace; returns its output and exit code.",
    build_schema({"command": TEXT}, timeout_seconds=NUMBER),
)
COPIES = {"type": "array", "items": build_schema({"source": TEXT, "target": TEXT})}
COPY = _make_tool(
    "copy_files_batch",
    "Copy files or folders that you may read into your workspace, many at once; a source may be a "
    "path in the workspace of a subagent of yours.",
    build_schema({"copies": COPIES}),
)


def add_file_tools(toolbox: Toolbox, files: MemberFiles) -> None:
    for method, tool in FILE_TOOLS.items():
        toolbox.add(tool, getattr(files, method))


def add_command_tool(
    toolbox: Toolbox, files: MemberFiles, environment: Mapping[str, str], left: Callable[[], float]
) -> None:
    async def run(command: str, timeout_seconds: float = USUAL_SECONDS) -> str:
        seconds = min(max(0.1, timeout_seconds), max(0.1, left()))
        try:
            return await run_command(command, files.home, environment, seconds)
        except (OSError, ValueError) as fault:
            raise ToolError(f"the command could not be run: {fault}") from fault

    toolbox.add(RUN, run)


def add_copy_tool(toolbox: Toolbox, copy: Callable[[str, str], Awaitable[str] | str]) -> None:
    async def copy_all(copies: list[dict[str, str]]) -> str:
        told = []
        for each in copies:
            try:
                given = copy(each.get("source", ""), each.get("target", ""))
                told.append(await given if inspect.isawaitable(given) else given)
            except (ToolError, OSError) as why:
                told.append(f"error: {_describe_fault(why)}")
            # Let other members run between two large copies.
            await asyncio.sleep(0)
        return "\n".join(told) or "nothing to copy"

    toolbox.add(COPY, copy_all)
