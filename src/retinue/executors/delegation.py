"""A member that may delegate: the tools for it, carried to the steward over its socket."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from retinue.delegating.asking import Request
from retinue.delegating.calls import Calls
from retinue.delegating.own import OwnDesk
from retinue.delegating.planning import PLAN, SUBMIT, SUBMIT_DESCRIPTION, plan_text
from retinue.delegating.terms import Terms
from retinue.delegating.tools import definitions
from retinue.domain.conversation import Tool
from retinue.domain.errors import RetinueError, StewardUnavailable
from retinue.domain.ids import MemberId
from retinue.executors.files import (
    MOST_LISTED,
    MOST_READ,
    Files,
    Impossible,
    matches,
    passage,
)
from retinue.executors.inbox import Inbox
from retinue.executors.toolbox import FILE_TOOLS, Toolbox, add_copy_tool
from retinue.executors.trees import MOST_NAMED
from retinue.steward.link import Link
from retinue.steward.remote import Remote, connected
from retinue.wire.protocol import MAX_OF_CHILD, MOST_FILES

RECONNECTIONS, RECONNECT_SECONDS = 60, 0.5


class ChildDesk(OwnDesk):
    """Errands of one member."""

    def __init__(
        self,
        socket: str,
        member: MemberId,
        absent: Callable[[], Sequence[MemberId]],
        inbox: Inbox,
    ) -> None:
        super().__init__(self._call)
        self._member = member
        self._absent = absent  # for whom it asks, too, because they will not
        self._inbox = inbox
        self._link = Link(partial(_connect, socket), RECONNECTIONS)

    async def _call(self, verb: str, **params: Any) -> Any:
        params |= {"member": self._member, "absent": list(self._absent())}
        if verb == "parent.wait":
            params["heard"] = self._inbox.newest  # a later message is worth more than waiting on
        return await self._link.call(verb, **params)


async def _connect(socket: str) -> Remote:
    """Raises:
    StewardUnavailable: nobody is there yet; whoever comes next may be asked.
    """
    try:
        return await connected(socket, most=MAX_OF_CHILD)
    except OSError as fault:
        await asyncio.sleep(RECONNECT_SECONDS)
        words = f"the steward cannot be reached: {fault}"
        raise StewardUnavailable(words, code="steward_lost") from None


def add_delegation_tools(box: Toolbox, desk: ChildDesk, terms: Terms, types: Sequence[str]) -> None:
    """The same eight tools that any agent is given, for the subagents of this one."""
    calls = Calls(desk, lambda: types)
    for definition in definitions(terms):
        tool = Tool(
            name=definition.name,
            description=definition.description,
            parameters=definition.takes,
        )
        box.add(tool, _body(calls, definition.name), always=True, checked=False)


def add_collecting_tools(box: Toolbox, collector: Collector) -> None:
    """The tools that read, for what is in the workspaces of subagents as well."""
    for method in ("read", "listing", "search"):
        box.add(FILE_TOOLS[method], getattr(collector, method))
    add_copy_tool(box, collector.copy)


def add_planning_tool(box: Toolbox, desk: ChildDesk) -> None:
    """The tool by which a whole plan is carried out, as if a person had given its file."""

    async def submit(**plan: Any) -> str:
        try:
            return plan_text(await desk.ask("plan", plan=plan))
        except RetinueError as error:
            raise Impossible(f"{error.message} ({error.hint})") from None

    tool = Tool(name=SUBMIT, description=SUBMIT_DESCRIPTION, parameters=PLAN)
    box.add(tool, submit, always=True, checked=False)


def _body(calls: Calls, name: str) -> Callable[..., Awaitable[str]]:
    async def use(**arguments: Any) -> str:
        try:
            # A turn that is over takes nothing back: what it waited for goes on, and is told later.
            request = Request(tool=name, arguments=arguments, was_cut=lambda: True)
            answer = await calls.perform(request)
        except RetinueError as error:
            raise Impossible(f"{error.message} ({error.hint})") from None
        return "\n\n".join(answer.texts)

    return use


class Collector:
    """Reads, and copies into a member's folder, also what is in the workspaces of its subagents.

    Those it cannot see itself: the steward hands their files over, one by one.
    """

    def __init__(self, files: Files, desk: ChildDesk) -> None:
        self._files = files
        self._desk = desk

    async def read(self, path: str, offset: int = 0, limit: int = MOST_READ) -> str:
        if (owner := self._owner(path)) is None:
            return self._files.read(path, offset, limit)
        text = (await self._taken(*owner)).decode("utf-8", "replace")
        return passage(text, offset, limit)

    async def listing(self, path: str = ".", pattern: str = "*") -> str:
        if (owner := self._owner(path)) is None:
            return self._files.listing(path, pattern)
        subagent, inside = owner
        names = await self._names(subagent, inside)
        if inside in names:
            raise Impossible(f"{path} is not a folder")
        below = (_place(name, inside, "") for name in names)
        found = [name for name in below if matches(name, pattern)]
        some = len(found) > MOST_LISTED or len(names) > MOST_FILES
        more = "\n[more files than are shown]" if some else ""
        return "\n".join(found[:MOST_LISTED] or ["no files"]) + more

    async def search(self, pattern: str, path: str = ".", files: str = "*") -> str:
        if self._owner(path) is None:
            return await self._files.search(pattern, path, files)
        raise Impossible("copy the files of a subagent with copy_files_batch, and search those")

    async def copy(self, source: str, target: str) -> str:
        if (owner := self._owner(source)) is None:
            return self._files.copy(source, target)
        subagent, inside = owner
        names, left = await self._names(subagent, inside), []
        chosen = names[:MOST_FILES]
        for name in chosen:
            try:
                data = await self._taken(subagent, name)
            except _Unreadable as why:
                if name == inside:
                    raise
                left.append(str(why))
            else:
                self._files.put(_place(name, inside, target), data)
        more = f" and {len(left) - MOST_NAMED} more" if len(left) > MOST_NAMED else ""
        lacks = f"\n[left out: {', '.join(left[:MOST_NAMED])}{more}]" if left else ""
        lacks += "\n[there are more: copy its folders one by one]" if names != chosen else ""
        return f"copied {len(chosen) - len(left)} files of {subagent} to {target}{lacks}"

    def _owner(self, path: str) -> tuple[str, str] | None:
        """Whose workspace a path leads into, and where in it; None where it is seen from here."""
        owner = _owner(path)
        return None if owner is None or self._files.sees(path) else owner

    async def _names(self, subagent: str, inside: str) -> list[str]:
        """Raises:
        Impossible: nothing is there.
        """
        if inside == ".":
            inside = ""
        names: list[str] = await self._ask("files", subagent=subagent, path=inside)
        if inside and not names:
            there = await self._ask("files", subagent=subagent)
            raise Impossible(f"{subagent} has no {inside}; it has: {', '.join(there[:20])}")
        return names

    async def _taken(self, subagent: str, name: str) -> bytes:
        found = await self._ask("file", subagent=subagent, path=name)
        return base64.b64decode(found["content"])

    async def _ask(self, verb: str, **params: Any) -> Any:
        """Raises:
        Impossible: what was asked for cannot be had.
        """
        try:
            return await self._desk.ask(verb, **params)
        except RetinueError as error:
            kind = _Unreadable if error.code == "unreadable" else Impossible
            raise kind(error.message) from None


class _Unreadable(Impossible):
    """This file cannot be had; others can."""


def _owner(source: str) -> tuple[str, str] | None:
    """The same by the path's form: …/agents/<id>/workspace/<path>."""
    parts = PurePosixPath(source).parts
    for number, part in enumerate(parts):
        if part == "agents" and parts[number + 2 : number + 3] == ("workspace",):
            return parts[number + 1], str(PurePosixPath(*parts[number + 3 :]))
    return None


def _place(name: str, inside: str, target: str) -> str:
    """One file goes to the target itself; what lies below a folder keeps its place below it."""
    if name == inside:
        return target
    return str(Path(target) / (name if inside == "." else PurePosixPath(name).relative_to(inside)))
