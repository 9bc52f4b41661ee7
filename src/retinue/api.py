"""The Python API: the same verbs in-process or through the steward."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retinue.app import catch_up, open_app, resume
from retinue.domain.brief import Brief
from retinue.domain.errors import BadInput
from retinue.domain.result import Result
from retinue.settings import find_root, read_settings
from retinue.steward.client import reach
from retinue.steward.inprocess import InProcess
from retinue.steward.remote import connected
from retinue.steward.visit import Carrier, Visit
from retinue.wire.brief import brief_to_json
from retinue.wire.result import result_from_json


@dataclass(frozen=True)
class Settled:
    """A subagent that gave a waiter something to see."""

    id: str
    status: str


@dataclass(frozen=True)
class Spawned:
    """A subagent that exists."""

    id: str
    status: str
    workspace: str
    warning: str = ""


@dataclass(frozen=True)
class Batch:
    """The results of a whole call, in its order."""

    success: bool
    results: Sequence[Result]
    summary: Mapping[str, int]


class Task:
    """One piece of work, and the subagents it is delegated to."""

    def __init__(self, visit: Visit, task_id: str) -> None:
        self._visit = visit
        self.id = task_id

    async def spawn(
        self, briefs: Sequence[Brief], *, key: str = "", queue: bool = False
    ) -> list[Spawned]:
        """Every subagent of the call exists and executes, or waits its turn."""
        answer = await self._spawn(briefs, key=key, queue=queue, wait=False)
        return [_spawned(each) for each in answer["subagents"]]

    async def run(self, briefs: Sequence[Brief], *, key: str = "", queue: bool = False) -> Batch:
        """The results of all of them. Cancelled itself, it cancels its subagents."""
        answer = await self._spawn(briefs, key=key, queue=queue, wait=True)
        results = [result_from_json(each) for each in answer["results"]]
        return Batch(answer["success"], results, answer["summary"])

    async def wait_any(
        self, timeout: float | None = None, *, consumer: str = "default", peek: bool = False
    ) -> Settled:
        """The next settled subagent; each is given to a consumer once.

        Raises:
            NothingToWaitFor: nobody is at work, and every end has been told.
            WaitTimedOut: none settled in time.
        """
        answer = await self._call(
            "subagent.wait_any", timeout_seconds=timeout, consumer=consumer, peek=peek
        )
        return Settled(answer["agentInstance"], answer["status"])

    async def wait_all(self, timeout: float | None = None) -> list[Settled]:
        """Every subagent of the task, once none works or waits to."""
        answer = await self._call("subagent.wait_all", timeout_seconds=timeout)
        return [Settled(each["agentInstance"], each["status"]) for each in answer]

    async def result(self, subagent: str) -> Result:
        """What the parent receives.

        Raises:
            NotFound: it has none yet.
        """
        return result_from_json(await self._call("subagent.result", subagent=subagent))

    async def cancel(self, subagent: str, *, reason: str = "", kill: bool = False) -> Result:
        """What the cancelled subagent had earned.

        Raises:
            Refused: it had come to its end by itself.
        """
        answer = await self._call("subagent.cancel", subagent=subagent, reason=reason, kill=kill)
        return result_from_json(answer["result"])

    async def continue_(
        self, subagent: str, message: str, *, timeout: float | None = None
    ) -> Spawned:
        """A blocked subagent goes on with its answer; a closed one has a successor."""
        answer = await self._call(
            "subagent.continue", subagent=subagent, message=message, timeout_seconds=timeout
        )
        _warn(answer)
        return _spawned(answer)

    async def send(self, subagent: str, message: str) -> None:
        """A running subagent hears the message at its next turn.

        Raises:
            Refused: it does not run.
        """
        await self._call("subagent.send", subagent=subagent, message=message)

    async def subagents(self, limit: int = 50) -> list[dict[str, Any]]:
        """The newest subagents and every open one, as `retinue subagent list --json` has them."""
        rows: list[dict[str, Any]] = await self._call("subagent.list", limit=limit)
        return rows

    def events(self, *, since: int = 0, follow: bool = False) -> AsyncIterator[dict[str, Any]]:
        """The task's events after that number; with `follow`, also those to come."""
        return self._visit.stream("task.events", task=self.id, since=since, follow=follow)

    async def close(self) -> None:
        """Every subagent is closed, the run has its outcome, the task takes no more work."""
        await self._call("task.close")

    async def _spawn(self, briefs: Sequence[Brief], **options: Any) -> Any:
        items = [brief_to_json(brief) for brief in _listed(briefs)]
        answer = await self._call("subagent.spawn", tasks=items, cwd=str(Path.cwd()), **options)
        _warn(answer, level=4)
        return answer

    async def _call(self, verb: str, **params: Any) -> Any:
        return await self._visit.call(verb, task=self.id, by="parent", **params)


class Retinue:
    """A root that is open, in this process or through its steward."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit

    async def create_task(
        self,
        *,
        title: str,
        description: str = "",
        config: str = "",
        max_concurrent: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Task:
        """The task exists, with its folder; `config` is the text of a configuration."""
        answer = await self._visit.call(
            "task.create",
            title=title,
            description=description,
            config_text=config,
            max_concurrent=max_concurrent,
            timeout_seconds=timeout_seconds,
        )
        _warn(answer)
        return Task(self._visit, answer["task_id"])

    def task(self, task_id: str) -> Task:
        """A task by its id; whether it exists shows with the first verb."""
        return Task(self._visit, task_id)

    async def run_plan(
        self,
        plan: str,
        *,
        folder: str | Path = "",
        config: str = "",
        apply: bool = False,
        include_dirty: bool = False,
    ) -> dict[str, Any]:
        """What became of a plan, as `retinue run --json` has it; `plan` is the text of its file.

        Its repository is relative to `folder`, or to where one is. The run goes on if the
        caller stops waiting for it.
        """
        place = str(Path.cwd() / folder)
        started = await self._visit.call(
            "run.start",
            plan_text=plan,
            plan_folder=place,
            cwd=place,
            config_text=config,
            apply=apply,
            include_dirty=include_dirty,
            by="parent",
        )
        _warn(started)
        end: dict[str, Any] = await self._visit.call("run.wait", task=started["task_id"])
        return end

    async def tasks(self, limit: int = 50) -> list[dict[str, Any]]:
        """The newest tasks."""
        rows: list[dict[str, Any]] = await self._visit.call("task.list", limit=limit)
        return rows

    async def call(self, verb: str, **params: Any) -> Any:
        """Any other verb, as the command line would send it."""
        return await self._visit.call(verb, **params)


@asynccontextmanager
async def open(root: str | Path | None = None) -> AsyncIterator[Retinue]:
    """The root, held by this process until the block is left.

    What was spawned goes on and awaits the next holder; calls that are still awaited end, and a
    run among them as if it had been cancelled.

    Raises:
        StewardUnavailable: a steward, or another program, holds it.
    """
    found = find_root(str(root) if root else None, Path.cwd(), os.environ)
    complaints: list[str] = []
    app = open_app(read_settings(found, os.environ), complaints.append)
    catching_up = asyncio.create_task(catch_up(app))
    try:
        resume(app)
        app.service.supervisor.at_leisure.set()
        async with _visited(InProcess(app)) as r:
            yield r
    finally:
        catching_up.cancel()
        await app.close()


@asynccontextmanager
async def connect(root: str | Path | None = None) -> AsyncIterator[Retinue]:
    """The root, through its steward, which is started if there is none, until the block is left.

    What was spawned goes on; calls that are still awaited end, and a run among them as if it had
    been cancelled.
    """
    found = find_root(str(root) if root else None, Path.cwd(), os.environ)
    connection = await asyncio.to_thread(reach, found)
    caller = await connected(sock=connection)
    try:
        async with _visited(caller) as r:
            yield r
    finally:
        caller.close()


@asynccontextmanager
async def _visited(carrier: Carrier) -> AsyncIterator[Retinue]:
    visit = Visit(carrier)
    try:
        yield Retinue(visit)
    finally:
        await visit.leave()


def _listed(briefs: Any) -> list[Brief]:
    """Raises:
    BadInput: these are no briefs.
    """
    several = isinstance(briefs, Iterable) and not isinstance(briefs, str | bytes)
    listed = list(briefs) if several else []
    wrong = [each for each in listed if not isinstance(each, Brief)] if several else [briefs]
    if wrong:
        raise BadInput(
            f"briefs must be a list of retinue.Brief, not {ascii(wrong[0])[:40]}",
            code="invalid_request",
            hint='for example [Brief("words")], or [Brief(argv=["date"])]',
        )
    return listed


def _warn(answer: Mapping[str, Any], level: int = 3) -> None:
    """What an answer says beside its subject is a warning, at the line that asked."""
    for each in answer.get("warnings", ()):
        warnings.warn(each, stacklevel=level)


def _spawned(row: Mapping[str, Any]) -> Spawned:
    return Spawned(row["subagent_id"], row["status"], row["workspace"], row.get("warning", ""))
