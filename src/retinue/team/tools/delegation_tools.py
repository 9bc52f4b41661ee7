"""Delegation tools of a member; its calls go to the steward's socket."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from retinue.client.async_client import Remote, connect_steward
from retinue.client.reconnect import RetryingLink
from retinue.core.conversation import Tool
from retinue.core.errors import AGENT, RetinueError, StewardUnavailable
from retinue.core.ids import MemberId
from retinue.delegation.delegation_calls import DelegationCalls
from retinue.delegation.plan_tool import PLAN, SUBMIT, SUBMIT_DESCRIPTION, format_plan_end
from retinue.delegation.result_view import Request
from retinue.delegation.task_session import ChildSession
from retinue.delegation.tool_definitions import build_definitions
from retinue.delegation.tool_schemas import ToolLimits
from retinue.formats.steward_protocol import MAX_CHILD_REQUEST, MOST_FILES
from retinue.team.inbox import Inbox
from retinue.team.tools.file_tools import (
    MOST_LISTED,
    MOST_READ,
    MemberFiles,
    ToolError,
    cut_passage,
    is_match,
)
from retinue.team.tools.tool_registry import FILE_TOOLS, Toolbox, add_copy_tool
from retinue.team.tree_copy import MOST_NAMED

# Long enough for a steward to be replaced.
RECONNECTIONS, RECONNECT_SECONDS = 60, 0.5


class MemberSession(ChildSession):
    """Session of one member with the steward."""

    def __init__(
        self,
        socket: str,
        member: MemberId,
        absent: Callable[[], Sequence[MemberId]],
        inbox: Inbox,
    ) -> None:
        super().__init__(self._call)
        self._member = member
        self._absent = absent  # members that left; this one receives their results, too
        self._inbox = inbox
        self._link = RetryingLink(partial(_connect, socket), RECONNECTIONS)

    async def _call(self, verb: str, **params: Any) -> Any:
        params |= {"member": self._member, "absent": list(self._absent())}
        # A newer message of the parent ends the wait.
        if verb == "parent.wait":
            params["heard"] = self._inbox.newest
        return await self._link.call(verb, **params)


async def _connect(socket: str) -> Remote:
    """Connect to the steward.

    Raises:
        StewardUnavailable: no steward listens; a retry may find the next one.
    """
    try:
        return await connect_steward(socket, most=MAX_CHILD_REQUEST)
    except OSError as fault:
        # The caller retries at once, so the pause is here.
        await asyncio.sleep(RECONNECT_SECONDS)
        words = f"the steward cannot be reached: {fault}"
        raise StewardUnavailable(words, code="steward_lost") from None


def add_delegation_tools(toolbox: Toolbox, session: MemberSession, terms: ToolLimits) -> None:
    """Add the eight delegation tools."""
    calls = DelegationCalls(session, lambda: terms)
    for definition in build_definitions(terms):
        tool = Tool(
            name=definition.name,
            description=definition.description,
            parameters=definition.takes,
        )
        toolbox.add(tool, _make_body(calls, definition.name), always=True, checked=False)


def add_collecting_tools(toolbox: Toolbox, collector: SubagentFiles) -> None:
    """Replace the reading tools by ones that also reach the workspaces of subagents."""
    for method in ("read", "listing", "search"):
        toolbox.add(FILE_TOOLS[method], getattr(collector, method))
    add_copy_tool(toolbox, collector.copy)


def add_planning_tool(toolbox: Toolbox, session: MemberSession) -> None:
    """Add the tool that runs a whole plan, as `retinue run` does with a file."""

    async def submit(**plan: Any) -> str:
        try:
            return format_plan_end(await session.ask("plan", plan=plan))
        except RetinueError as error:
            raise _impossible(error) from None

    tool = Tool(name=SUBMIT, description=SUBMIT_DESCRIPTION, parameters=PLAN)
    toolbox.add(tool, submit, always=True, checked=False)


def _make_body(calls: DelegationCalls, name: str) -> Callable[..., Awaitable[str]]:
    async def use(**arguments: Any) -> str:
        try:
            # If the turn is interrupted, the subagents keep running and report later.
            request = Request(tool=name, arguments=arguments, was_cut=lambda: True)
            answer = await calls.perform(request)
        except RetinueError as error:
            raise _impossible(error) from None
        return "\n\n".join(answer.texts)

    return use


class SubagentFiles:
    """File tools that also read the workspaces of the member's subagents.

    An isolated child cannot see these, so the steward sends their files one by one.
    """

    def __init__(self, files: MemberFiles, session: MemberSession) -> None:
        self._files = files
        self._session = session

    async def read(self, path: str, offset: int = 0, limit: int = MOST_READ) -> str:
        if (owner := self._find_owner(path)) is None:
            return self._files.read(path, offset, limit)
        text = (await self._fetch_file(*owner)).decode("utf-8", "replace")
        return cut_passage(text, offset, limit)

    async def listing(self, path: str = ".", pattern: str = "*") -> str:
        if (owner := self._find_owner(path)) is None:
            return self._files.listing(path, pattern)
        subagent, inside = owner
        names = await self._list_names(subagent, inside)
        if inside in names:
            raise ToolError(f"{path} is not a folder")
        below = (_place(name, inside, "") for name in names)
        found = [name for name in below if is_match(name, pattern)]
        some = len(found) > MOST_LISTED or len(names) > MOST_FILES
        more = "\n[more files than are shown]" if some else ""
        return "\n".join(found[:MOST_LISTED] or ["no files"]) + more

    async def search(self, pattern: str, path: str = ".", files: str = "*") -> str:
        if self._find_owner(path) is None:
            return await self._files.search(pattern, path, files)
        raise ToolError("copy the files of a subagent with copy_files_batch, and search those")

    async def copy(self, source: str, target: str) -> str:
        if (owner := self._find_owner(source)) is None:
            return self._files.copy(source, target)
        subagent, inside = owner
        names = await self._list_names(subagent, inside)
        left = []
        chosen = names[:MOST_FILES]
        for name in chosen:
            try:
                data = await self._fetch_file(subagent, name)
            except _UnreadableFile as why:
                if name == inside:
                    raise
                left.append(str(why))
            else:
                self._files.put(_place(name, inside, target), data)
        more = f" and {len(left) - MOST_NAMED} more" if len(left) > MOST_NAMED else ""
        lacks = f"\n[left out: {', '.join(left[:MOST_NAMED])}{more}]" if left else ""
        lacks += "\n[there are more: copy its folders one by one]" if names != chosen else ""
        return f"copied {len(chosen) - len(left)} files of {subagent} to {target}{lacks}"

    def _find_owner(self, path: str) -> tuple[str, str] | None:
        """Return the subagent and the path in its workspace; None if the file is readable here."""
        owner = _parse_owner(path)
        return None if owner is None or self._files.can_read(path) else owner

    async def _list_names(self, subagent: str, inside: str) -> list[str]:
        """Return the files at or below a path of a subagent's workspace.

        Raises:
            ToolError: there are none.
        """
        if inside == ".":
            inside = ""
        names: list[str] = await self._ask("files", subagent=subagent, path=inside)
        if inside and not names:
            there = await self._ask("files", subagent=subagent)
            raise ToolError(f"{subagent} has no {inside}; it has: {', '.join(there[:20])}")
        return names

    async def _fetch_file(self, subagent: str, name: str) -> bytes:
        found = await self._ask("file", subagent=subagent, path=name)
        return base64.b64decode(found["content"])

    async def _ask(self, verb: str, **params: Any) -> Any:
        """Send a verb to the steward.

        Raises:
            ToolError: the steward refused it.
        """
        try:
            return await self._session.ask(verb, **params)
        except RetinueError as error:
            kind = _UnreadableFile if error.code == "unreadable" else ToolError
            raise kind(error.message) from None


class _UnreadableFile(ToolError):
    """This file cannot be read; others may be."""


def _parse_owner(source: str) -> tuple[str, str] | None:
    """Split a path of the form …/agents/<id>/workspace/<path> into id and path."""
    parts = PurePosixPath(source).parts
    for number, part in enumerate(parts):
        if part == "agents" and parts[number + 2 : number + 3] == ("workspace",):
            return parts[number + 1], str(PurePosixPath(*parts[number + 3 :]))
    return None


def _place(name: str, inside: str, target: str) -> str:
    """Return the target of one file; files below a folder keep their relative path."""
    if name == inside:
        return target
    return str(Path(target) / (name if inside == "." else PurePosixPath(name).relative_to(inside)))


def _impossible(error: RetinueError) -> ToolError:
    """Return the error as the member's model reads it."""
    return ToolError(f"{error.message} ({error.read_by(AGENT).hint})")
