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
from retinue.executors.files import Files, Impossible
from retinue.executors.inbox import Inbox
from retinue.executors.toolbox import Toolbox
from retinue.steward.link import Link
from retinue.steward.remote import Remote, connected
from retinue.wire.protocol import MAX_OF_CHILD

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
    """Copies into a member's workspace, out of what it may read and out of its own subagents'.

    Those it cannot see itself: the steward hands their files over, one by one.
    """

    def __init__(self, files: Files, desk: ChildDesk) -> None:
        self._files = files
        self._desk = desk

    async def copy(self, source: str, target: str) -> str:
        owner = _owner(source)
        if owner is None:
            return self._files.copy(source, target)
        subagent, inside = owner
        try:
            names: list[str] = await self._desk.ask("files", subagent=subagent)
            chosen = [name for name in names if inside in (".", name) or _below(name, inside)]
            if not chosen:
                raise Impossible(f"{subagent} has no {inside}; it has: {', '.join(names[:20])}")
            for name in chosen:
                await self._take(subagent, name, _place(name, inside, target))
        except RetinueError as error:
            raise Impossible(error.message) from None
        return f"copied {len(chosen)} files of {subagent} to {target}"

    async def _take(self, subagent: str, name: str, target: str) -> None:
        found = await self._desk.ask("file", subagent=subagent, path=name)
        self._files.put(target, base64.b64decode(found["content"]))


def _owner(source: str) -> tuple[str, str] | None:
    """Whose workspace a path leads into, and where in it: …/agents/<id>/workspace/<path>."""
    parts = PurePosixPath(source).parts
    for number, part in enumerate(parts):
        if part == "agents" and parts[number + 2 : number + 3] == ("workspace",):
            return parts[number + 1], str(PurePosixPath(*parts[number + 3 :]))
    return None


def _below(name: str, folder: str) -> bool:
    return PurePosixPath(name).is_relative_to(folder)


def _place(name: str, inside: str, target: str) -> str:
    """One file goes to the target itself; what lies below a folder keeps its place below it."""
    if name == inside:
        return target
    return str(Path(target) / (name if inside == "." else PurePosixPath(name).relative_to(inside)))
