"""Where a parent's subagents are: one open task of the root, the same for all its doors.

Those of its tasks that were closed before are still asked for subagents that are theirs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

from retinue.domain.errors import BadInput, NotFound, NothingToWaitFor, Refused, WaitTimedOut

PARENT = "mcp"  # the consumer that is told of each end once, and the name of its task
TITLE = "Delegated by agents"

Call = Callable[..., Awaitable[Any]]  # a verb and its parameters, carried to the steward


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What was chosen when the server was started."""

    folder: Path  # what relative context paths are relative to
    task: str = ""  # a task of that id, and no other
    config_text: str = ""
    config_name: str = ""

    @property
    def names(self) -> Iterator[str]:
        """The tasks that this parent may have, oldest first; each once the one before is closed."""
        if self.task:
            return iter([self.task])
        return (PARENT if number == 1 else f"{PARENT}-{number}" for number in count(1))


class Desk:
    """Verbs about one parent's subagents. Their task is made when the first is spawned."""

    def __init__(self, call: Call, choice: Choice) -> None:
        self._steward = call
        self._choice = choice
        self._tasks: list[str] = []  # of this parent, oldest first, as far as they are known
        self._told: set[str] = set()  # older ones, of which every end has been told

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
        """A verb about a subagent that exists, in whichever task of this parent it is.

        Raises:
            NotFound: it does not.
        """
        tasks = tuple(self._tasks)
        if verb == "wait" and (told := await self._left_untold()) is not None:
            return told
        missing = NotFound(
            f"no subagent {str(params.get('subagent', ''))[:80]!a}: none has been spawned yet",
            code="unknown_subagent",
        )
        for task in reversed(tasks):
            try:
                return await self._call(verb, task, **params)
            except NotFound as error:
                if error.code != "unknown_subagent":
                    raise
                missing = error if task == tasks[-1] else missing
        raise missing

    async def rows(self, limit: int) -> list[dict[str, Any]]:
        """The newest subagents of the newest task, and every open one."""
        if not self._tasks:
            return []
        rows: list[dict[str, Any]] = await self._steward(
            "subagent.list", task=self._tasks[-1], limit=limit
        )
        return rows

    async def unseen(self, but: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Ends that the parent has not been told of, but for these; now it has."""
        taken: list[dict[str, Any]] = []
        for task in self._owing:
            taken = await self._call("take", task)
            if taken:
                return taken  # the rest comes with the next answer: nothing is taken and then lost
        if (told := await self._left_untold()) is not None:
            return [told]
        if self._tasks:
            taken = await self._call("take", self._tasks[-1], but=list(but))
        return taken

    async def take_back(self, names: Sequence[str]) -> None:
        """The parent is told of these ends again: an answer that told of them was lost."""
        for name in names:
            for task in reversed(self._tasks):
                with suppress(NotFound):
                    await self._call("take_back", task, subagents=[name])
                    self._told.discard(task)
                    break

    async def standing(self) -> dict[str, Any] | None:
        """The task that would take the next subagent, as it is shown; None while it is to be made.

        Raises:
            RetinueError: why that cannot be told.
        """
        await self.look()
        if not self._tasks:
            return None
        shown: dict[str, Any] = await self._show(self._tasks[-1])
        return shown if shown["state"] == "open" else None

    @property
    def _owing(self) -> list[str]:
        """The closed tasks that may hold ends of which nobody was told; no more will be in them."""
        return [each for each in self._tasks[:-1] if each not in self._told]

    async def _left_untold(self) -> Any:
        """An end in a closed task that the parent has not been told of; None where there is none.

        It need not be waited for. What is kept for another call may still come to be told here.
        """
        for task in self._owing:
            try:
                return await self._call("wait", task, timeout_seconds=0)
            except NothingToWaitFor:
                self._told.add(task)
            except WaitTimedOut:
                continue
        return None

    async def _call(self, verb: str, task: str, **params: Any) -> Any:
        if verb != "look":
            params["consumer"] = PARENT
        return await self._steward(f"parent.{verb}", task=task, by="parent", **params)

    async def _show(self, task: str) -> Any:
        return await self._steward("task.show", task=task, limit=0)

    async def look(self) -> None:
        """The tasks of this parent are known: another of its servers may have made the newest."""
        for name in islice(self._choice.names, len(self._tasks), None):
            try:
                await self._show(name)
            except NotFound:
                break
            self._enter(name)

    def _enter(self, name: str) -> None:
        if name not in self._tasks:  # whoever was asked at the same time may have been faster
            self._tasks.append(name)

    async def _opened(self, fresh: bool) -> str:
        """A task of this parent that takes work."""
        if self._tasks and not fresh:
            return self._tasks[-1]
        if (standing := await self.standing()) is not None:
            return str(standing["task_id"])
        if self._choice.task and self._tasks:
            raise Refused(
                f"task {self._choice.task} is closed",
                code="task_closed",
                hint="it takes no more work: whoever started this server can name another task",
            )
        name = next(islice(self._choice.names, len(self._tasks), None))
        try:
            await self._steward(
                "task.create",
                title=TITLE,
                task_id=name,
                config_text=self._choice.config_text,
                config_name=self._choice.config_name or "configuration",
            )
        except BadInput as error:
            if error.code != "duplicate_id":  # another server of this root was first
                raise
        self._enter(name)
        return name
