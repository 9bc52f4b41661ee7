"""Where a parent's subagents are: one open task of the root, the same for all its doors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from retinue.domain.errors import BadInput, NotFound, Refused

PARENT = "mcp"  # the consumer that is told of each end once, and the name of its task
TITLE = "Delegated by agents"


class Carrier(Protocol):
    """Whoever carries a verb to the steward and its answer back."""

    async def call(self, verb: str, **params: Any) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What was chosen when the server was started."""

    folder: Path  # what relative context paths are relative to
    task: str = ""  # a task of that id, and no other
    config_text: str = ""
    config_name: str = ""


class Desk:
    """Verbs about one parent's subagents. Their task is made when the first is spawned."""

    def __init__(self, carrier: Carrier, choice: Choice) -> None:
        self._carrier = carrier
        self._choice = choice
        self._task = ""

    async def spawn(self, **params: Any) -> Any:
        folder = str(self._choice.folder)
        for fresh in (False, True):
            try:
                task = await self._opened(fresh)
                return await self._call("spawn", task, cwd=folder, **params)
            except Refused as error:
                if error.code != "task_closed" or fresh:
                    raise
        raise AssertionError("the second try returns or raises")

    async def ask(self, verb: str, **params: Any) -> Any:
        """A verb about a subagent that exists.

        Raises:
            NotFound: it does not.
        """
        task = await self._known()
        if not task:
            name = str(params.get("subagent", ""))[:80]
            raise NotFound(
                f"no subagent {name!a}: none has been spawned yet", code="unknown_subagent"
            )
        return await self._call(verb, task, **params)

    async def rows(self, limit: int) -> list[dict[str, Any]]:
        """The newest subagents and every open one."""
        task = await self._known()
        if not task:
            return []
        rows: list[dict[str, Any]] = await self._carrier.call(
            "subagent.list", task=task, limit=limit
        )
        return rows

    async def unseen(self, but: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Ends that the parent has not been told of, but for these; now it has."""
        if not self._task:
            return []
        taken: list[dict[str, Any]] = await self._call("take", self._task, but=list(but))
        return taken

    async def take_back(self, names: Sequence[str]) -> None:
        """The parent is told of these ends again: an answer that told of them was lost."""
        await self._call("take_back", self._task, subagents=list(names))

    async def _call(self, verb: str, task: str, **params: Any) -> Any:
        if verb != "look":
            params["consumer"] = PARENT
        return await self._carrier.call(f"parent.{verb}", task=task, by="parent", **params)

    async def _known(self) -> str:
        """The newest task of this parent, or nothing."""
        if not self._task:
            names = [name for name, _ in await self._candidates()]
            self._task = names[-1] if names else ""
        return self._task

    async def _opened(self, fresh: bool) -> str:
        """A task of this parent that takes work."""
        if self._task and not fresh:
            return self._task
        candidates = await self._candidates()
        if candidates and candidates[-1][1] == "open":
            self._task = candidates[-1][0]
            return self._task
        if self._choice.task and candidates:
            raise Refused(f"task {self._choice.task} is closed", code="task_closed")
        name = self._choice.task or _name(len(candidates) + 1)
        try:
            await self._carrier.call(
                "task.create",
                title=TITLE,
                task_id=name,
                config_text=self._choice.config_text,
                config_name=self._choice.config_name or "configuration",
            )
        except BadInput as error:
            if error.code != "duplicate_id":  # another server of this root was first
                raise
        self._task = name
        return name

    async def _candidates(self) -> list[tuple[str, str]]:
        """This parent's tasks with their states, oldest first."""
        found: list[tuple[str, str]] = []
        for number in count(1):
            name = self._choice.task or _name(number)
            try:
                shown = await self._carrier.call("task.show", task=name, limit=0)
            except NotFound:
                return found
            found.append((name, shown["state"]))
            if self._choice.task:
                return found
        raise AssertionError("count() does not end")


def _name(number: int) -> str:
    return PARENT if number == 1 else f"{PARENT}-{number}"
