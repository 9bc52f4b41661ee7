"""The one gate before every tool: what the contract allows is done, all else is refused aloud."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from retinue.domain.contract import Contract
from retinue.domain.conversation import Call, Tool
from retinue.executors.arguments import fitting
from retinue.executors.commands import USUAL_SECONDS, run_command
from retinue.executors.files import Denied, Files, Impossible

Body = Callable[..., Awaitable[str] | str]
Note = Callable[[str, str], None]  # tool, why it was refused

TEXT: dict[str, object] = {"type": "string"}
NUMBER: dict[str, object] = {"type": "number"}
WHOLE: dict[str, object] = {"type": "integer"}


def schema(required: Mapping[str, object], **optional: object) -> dict[str, object]:
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }


@dataclass(frozen=True, kw_only=True)
class Told:
    """What came of a call, as its model is told."""

    text: str
    done: bool = False


@dataclass(frozen=True, kw_only=True)
class Entry:
    tool: Tool
    body: Body
    checked: bool = True  # by what the tool says that it takes


class Toolbox:
    """What one member can do. Refusals are noted, and worded so that a model can act on them."""

    def __init__(self, contract: Contract, note: Note) -> None:
        self._contract = contract
        self._note = note
        self._entries: dict[str, Entry] = {}
        self._always: set[str] = set()
        self._withheld: dict[str, tuple[str, Note]] = {}

    def add(self, tool: Tool, body: Body, *, always: bool = False, checked: bool = True) -> None:
        """The tool is there; where the contract grants it, or always."""
        self._entries[tool.name] = Entry(tool=tool, body=body, checked=checked)
        if always:
            self._always.add(tool.name)

    def withhold(self, names: Iterable[str], why: str, note: Note) -> None:
        """These are not there: whoever calls one is told why, and it is noted so."""
        self._withheld |= dict.fromkeys(names, (why, note))

    @property
    def offered(self) -> list[Tool]:
        there = (entry for name, entry in self._entries.items() if name not in self._withheld)
        return [entry.tool for entry in there if self._granted(entry.tool.name)]

    async def use(self, call: Call) -> Told:
        """What the tool gave, or why it gave nothing. Never raises for what a model asked."""
        entry = self._entries.get(call.tool)
        offered = ", ".join(tool.name for tool in self.offered)
        if call.tool in self._withheld:
            why, note = self._withheld[call.tool]
            note(call.tool, why)
            return Told(text=f"refused: {why}; there are: {offered}")
        if entry is None:
            why = f"there is no tool {call.tool[:80]!a}; there are: {offered}"
            self._note(call.tool, why)
            return Told(text=f"error: {why}")
        if not self._granted(call.tool):
            why = f"{call.tool} is not allowed by the contract; allowed are: {offered}"
            self._note(call.tool, why)
            return Told(text=f"refused: {why}")
        if call.malformed:
            return Told(text=f"error: the arguments are no JSON object: {call.malformed}")
        try:
            arguments = fitting(entry.tool, call.arguments) if entry.checked else call.arguments
            given = entry.body(**arguments)
            return Told(text=await given if inspect.isawaitable(given) else given, done=True)
        except Denied as why:
            self._note(call.tool, str(why))
            return Told(text=f"refused: {why}")
        except (Impossible, OSError) as why:
            return Told(text=f"error: {_said(why)}")

    def _granted(self, name: str) -> bool:
        return name in self._always or self._contract.permits(name)


def _said(why: Impossible | OSError) -> str:
    """What the disk refuses is for the model to know, too."""
    if isinstance(why, Impossible) or not why.strerror:
        return str(why)
    return f"{str(why.filename)[-200:]}: {why.strerror}" if why.filename else why.strerror


def _tool(name: str, description: str, parameters: dict[str, object]) -> Tool:
    return Tool(name=name, description=description, parameters=parameters)


# By the name of the method of Files that does it.
FILE_TOOLS = {
    "read": _tool(
        "read_file",
        "Read a text file of your workspace, of your context, or of a subagent of yours.",
        schema({"path": TEXT}, offset=WHOLE, limit=WHOLE),
    ),
    "write": _tool(
        "write_file",
        "Write a text file in your workspace; its folders are made.",
        schema({"path": TEXT, "content": TEXT}),
    ),
    "edit": _tool(
        "edit_file",
        "Replace a passage that stands exactly once in a file.",
        schema({"path": TEXT, "old": TEXT, "new": TEXT}),
    ),
    "listing": _tool(
        "list_files",
        "List the files below a folder, by an optional name pattern.",
        schema({}, path=TEXT, pattern=TEXT),
    ),
    "search": _tool(
        "search_files",
        "Find the lines of files that match a regular expression.",
        schema({"pattern": TEXT}, path=TEXT, files=TEXT),
    ),
}
RUN = _tool(
    "run_command",
    "Run a shell command in your workspace; gives its output and exit code.",
    schema({"command": TEXT}, timeout_seconds=NUMBER),
)
COPIES = {"type": "array", "items": schema({"source": TEXT, "target": TEXT})}
COPY = _tool(
    "copy_files_batch",
    "Copy files or folders that you may read into your workspace, many at once; a source may be a "
    "path in the workspace of a subagent of yours.",
    schema({"copies": COPIES}),
)


def add_file_tools(box: Toolbox, files: Files) -> None:
    for method, tool in FILE_TOOLS.items():
        box.add(tool, getattr(files, method))


def add_command_tool(
    box: Toolbox, files: Files, environment: Mapping[str, str], left: Callable[[], float]
) -> None:
    async def run(command: str, timeout_seconds: float = USUAL_SECONDS) -> str:
        seconds = min(max(0.1, timeout_seconds), max(0.1, left()))
        try:
            return await run_command(command, files.home, environment, seconds)
        except (OSError, ValueError) as fault:
            raise Impossible(f"the command could not be run: {fault}") from fault

    box.add(RUN, run)


def add_copy_tool(box: Toolbox, copy: Callable[[str, str], Awaitable[str] | str]) -> None:
    async def copy_all(copies: list[dict[str, str]]) -> str:
        told = []
        for each in copies:
            try:
                given = copy(each.get("source", ""), each.get("target", ""))
                told.append(await given if inspect.isawaitable(given) else given)
            except (Impossible, OSError) as why:
                told.append(f"error: {_said(why)}")
            await asyncio.sleep(0)
        return "\n".join(told) or "nothing to copy"

    box.add(COPY, copy_all)
