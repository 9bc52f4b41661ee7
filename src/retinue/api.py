"""The Python API: the same verbs in-process or through the steward."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import warnings
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from retinue.client.async_client import Remote, connect_steward
from retinue.client.blocking_client import connect_or_start
from retinue.client.reconnect import ProgramLink
from retinue.core.brief import Brief
from retinue.core.errors import BadInput, NothingToWaitFor, Refused
from retinue.core.result import Result
from retinue.formats.contract_json import brief_to_json
from retinue.formats.result_json import result_from_json
from retinue.settings import find_root, has_tasks, read_settings
from retinue.steward.app import open_app, open_to_read, resume, update_task_files
from retinue.steward.in_process import (
    InProcessTransport,
    RootSession,
    VerbTransport,
    hints_for_python,
)
from retinue.trust import can_be_used

SubagentStatus = Literal[
    "pending", "running", "blocked", "waiting_for_merge", "completed", "failed", "cancelled"
]
# The text of a document, its file, or its content.
Document = str | Path | Mapping[str, Any]


@dataclass(frozen=True)
class Settled:
    """A subagent that settled, and its status."""

    id: str
    """Its id."""
    status: SubagentStatus
    """Its status; `waiting_for_merge` if its output has to be integrated."""


@dataclass(frozen=True)
class Spawned:
    """A subagent that was spawned or continued."""

    id: str
    """Its id."""
    status: SubagentStatus
    """running, pending in the queue, or its final status if it has already ended."""
    workspace: str
    """The folder that it may write."""
    warning: str = ""
    """A warning about its terms; its result has it too."""


@dataclass(frozen=True)
class Batch:
    """The results of one `Task.run`, in the order of its briefs."""

    success: bool
    """Whether every result is a success."""
    results: Sequence[Result]
    """A result for each brief, in the same order."""
    summary: Mapping[str, int]
    """Counts: total, and completed, failed, timeout, partial and blocked, which add up to it."""


class Task:
    """One piece of work and its subagents."""

    def __init__(self, session: RootSession, task_id: str) -> None:
        self._session = session
        self.id = task_id

    async def spawn(
        self, briefs: Sequence[Brief], *, key: str = "", queue: bool = False
    ) -> list[Spawned]:
        """Spawn subagents and return at once.

        Args:
            key: idempotency key; the same key gives the same subagents.
            queue: at the concurrency limit, wait for a slot instead of failing.
        """
        answer = await self._spawn(briefs, key=key, queue=queue, wait=False)
        return [_to_spawned(each) for each in answer["subagents"]]

    async def run(self, briefs: Sequence[Brief], *, key: str = "", queue: bool = False) -> Batch:
        """Spawn subagents and wait for all results; if cancelled, cancel the subagents."""
        answer = await self._spawn(briefs, key=key, queue=queue, wait=True)
        results = [result_from_json(each) for each in answer["results"]]
        return Batch(answer["success"], results, answer["summary"])

    async def wait_any(
        self, timeout: float | None = None, *, consumer: str = "default", peek: bool = False
    ) -> Settled:
        """Wait for the next settled subagent; each consumer receives each one once.

        Raises:
            NothingToWaitFor: no subagent is running and all results were delivered.
            WaitTimedOut: none settled in time.
        """
        answer = await self._call(
            "subagent.wait_any", timeout_seconds=timeout, consumer=consumer, peek=peek
        )
        return Settled(answer["agentInstance"], answer["status"])

    async def wait_all(self, timeout: float | None = None) -> list[Settled]:
        """Wait until no subagent is running or queued; return all subagents of the task."""
        answer = await self._call("subagent.wait_all", timeout_seconds=timeout)
        return [Settled(each["agentInstance"], each["status"]) for each in answer]

    async def as_completed(
        self, subagents: Iterable[Spawned | str], *, timeout: float | None = None
    ) -> AsyncIterator[Result]:
        """Iterate over the results of these subagents, each as soon as it settles.

        Other consumers of `wait_any` are not affected.

        Args:
            timeout: seconds for all of them; None: for each, the time of the task.

        Raises:
            WaitTimedOut: some have not settled in time; they keep running.
        """
        left = {each.id if isinstance(each, Spawned) else each for each in subagents}
        for name in left:
            # Raises NotFound now, instead of waiting for an unknown name until the others end.
            await self._call("subagent.show", subagent=name)
        # A new consumer receives every result of the task, from the first one.
        consumer = f"as-completed-{secrets.token_hex(8)}"
        loop = asyncio.get_running_loop()
        due = None if timeout is None else loop.time() + timeout
        while left:
            rest = None if due is None else max(0.001, due - loop.time())
            try:
                settled = await self.wait_any(rest, consumer=consumer)
            except NothingToWaitFor:
                return
            if settled.id in left:
                left.discard(settled.id)
                yield await self.result(settled.id)

    async def result(self, subagent: str) -> Result:
        """Return the result of a subagent.

        Raises:
            NotFound: there is no result yet.
        """
        return result_from_json(await self._call("subagent.result", subagent=subagent))

    async def cancel(self, subagent: str, *, reason: str = "", kill: bool = False) -> Result:
        """Cancel a subagent and return the result recovered from it.

        Raises:
            Refused: the subagent has already ended.
        """
        answer = await self._call("subagent.cancel", subagent=subagent, reason=reason, kill=kill)
        return result_from_json(answer["result"])

    async def continue_(
        self, subagent: str, message: str, *, timeout: float | None = None
    ) -> Spawned:
        """Answer a blocked subagent, or give a closed one a successor with the message."""
        answer = await self._call(
            "subagent.continue", subagent=subagent, message=message, timeout_seconds=timeout
        )
        _warn(answer)
        return _to_spawned(answer)

    async def send(self, subagent: str, message: str, *, now: bool = False) -> None:
        """Send a message to a running subagent, which reads it at its next turn.

        Raises:
            Refused: the subagent is not running.
        """
        given = {"now": True} if now else {}
        await self._call("subagent.send", subagent=subagent, message=message, **given)

    async def subagents(self, limit: int | None = 50) -> list[dict[str, Any]]:
        """Return every open subagent and the newest closed ones, as `subagent list --json` does.

        Args:
            limit: the number of closed ones; None for all.
        """
        every = {"all": True} if limit is None else {"limit": limit}
        rows: list[dict[str, Any]] = await self._call("subagent.list", **every)
        return rows

    def events(self, *, since: int = 0, follow: bool = False) -> AsyncIterator[dict[str, Any]]:
        """Iterate over the events after number `since`; with `follow`, wait for new ones."""
        return self._session.stream("task.events", task=self.id, since=since, follow=follow)

    async def close(self) -> None:
        """Close all subagents, set the outcome of the run and refuse further work.

        Blocked subagents are closed as failed, with a warning.
        """
        _warn(await self._call("task.close"))

    async def _spawn(self, briefs: Sequence[Brief], **options: Any) -> Any:
        items = [brief_to_json(_name_python(brief)) for brief in _require_briefs(briefs)]
        answer = await self._call("subagent.spawn", tasks=items, cwd=str(Path.cwd()), **options)
        _warn(answer, level=4)
        return answer

    async def _call(self, verb: str, **params: Any) -> Any:
        return await self._session.call(verb, task=self.id, by="parent", **params)


def _name_python(brief: Brief) -> Brief:
    """Return the brief with the path of this program's Python, if it asks for that."""
    return replace(brief, python=sys.executable) if brief.python is True else brief


class Retinue:
    """An open root, held by this process or reached through its steward."""

    def __init__(self, session: RootSession) -> None:
        self._session = session

    async def create_task(
        self,
        *,
        title: str,
        description: str = "",
        config: Document = "",
        max_concurrent: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Task:
        """Create a task; `config` is a configuration: its text, its Path or a dict."""
        answer = await self._session.call(
            "task.create",
            title=title,
            description=description,
            config_text=await _read_document(config, "config", "a configuration"),
            max_concurrent=max_concurrent,
            timeout_seconds=timeout_seconds,
        )
        _warn(answer)
        return Task(self._session, answer["task_id"])

    def task(self, task_id: str) -> Task:
        """Return a task by its id; a missing task is reported by the first call on it."""
        return Task(self._session, task_id)

    async def run_plan(
        self,
        plan: Document,
        *,
        folder: str | Path = "",
        config: Document = "",
        vars: Mapping[str, str] | None = None,
        secrets: Sequence[str] = (),
        apply: bool = False,
        include_dirty: bool = False,
    ) -> dict[str, Any]:
        """Execute a plan and return its outcome, as `retinue run --json` prints it.

        The run continues if the caller stops waiting.

        Args:
            plan: its text, its Path or a dict.
            folder: the base of relative paths in it; default: that of its file, else the current
                folder.
            config: the configuration of its task: its text, its Path or a dict.
            vars: values that replace those of the plan's `vars`.
            secrets: handed out to the steps that name them: NAME, NAME=env:VARIABLE or
                NAME=file:PATH.
            apply: fast-forward the checked-out branch after a success.
            include_dirty: start from the uncommitted changes as well.
        """
        above = plan.parent if isinstance(plan, Path) and not folder else Path(folder)
        place = str(Path.cwd() / above)
        started = await self._session.call(
            "run.start",
            plan_text=await _read_document(plan, "plan", "a plan"),
            plan_folder=place,
            cwd=place,
            config_text=await _read_document(config, "config", "a configuration"),
            vars=dict(vars or {}),
            secrets=list(secrets),
            apply=apply,
            include_dirty=include_dirty,
            by="parent",
        )
        _warn(started)
        end: dict[str, Any] = await self._session.call("run.wait", task=started["task_id"])
        return end

    async def tasks(self, limit: int = 50) -> list[dict[str, Any]]:
        """Return the newest tasks."""
        rows: list[dict[str, Any]] = await self._session.call("task.list", limit=limit)
        return rows

    async def call(self, verb: str, **params: Any) -> Any:
        """Call any other verb, with the parameters that the command line sends."""
        return await self._session.call(verb, **params)


@asynccontextmanager
async def open(root: str | Path | None = None) -> AsyncIterator[Retinue]:
    """Open the root in this process until the end of the block.

    Afterwards spawned subagents continue; the next holder of the root takes them over. Pending
    calls end, and a pending `Task.run` is cancelled. An untrusted root is opened read-only: all
    other calls raise `Refused` with the code `root_not_trusted`.

    Raises:
        StewardUnavailable: a steward or another program holds the root.
    """
    found = find_root(str(root) if root else None, Path.cwd(), os.environ)
    complaints: list[str] = []
    settings = read_settings(found, os.environ)
    if not can_be_used(settings.root, os.environ):
        reader = open_to_read(settings, complaints.append)
        try:
            async with _open_session(InProcessTransport(reader)) as r:
                yield r
        finally:
            await reader.close()
        return
    with hints_for_python():
        app = open_app(settings, complaints.append)
    # Files of tasks may be older than the database; that need not delay the first call.
    catching_up = asyncio.create_task(update_task_files(app))
    try:
        resume(app)
        app.supervisor.started.set()
        async with _open_session(InProcessTransport(app)) as r:
            yield r
    finally:
        catching_up.cancel()
        await app.close()


@asynccontextmanager
async def connect(root: str | Path | None = None) -> AsyncIterator[Retinue]:
    """Connect to the root's steward until the end of the block, starting one if necessary.

    Afterwards spawned subagents continue. Pending calls end, and a pending `Task.run` is
    cancelled.

    If the steward is lost, reads, waits and spawns continue with the next one. Other pending
    calls fail with `StewardUnavailable`, code `steward_lost`, because they may have been carried
    out. Later calls use the next steward.
    """
    found = find_root(str(root) if root else None, Path.cwd(), os.environ)

    async def connect_to_steward() -> Remote:
        return await connect_steward(sock=await asyncio.to_thread(connect_or_start, found))

    link = ProgramLink(connect_to_steward)
    with hints_for_python():
        await link.open()
    try:
        async with _open_session(link) as r:
            yield r
    finally:
        # Without tasks, wait until the steward has removed the unused root.
        if not has_tasks(found):
            await link.leave()
        link.close()


def run_sync(
    briefs: Sequence[Brief],
    *,
    title: str = "",
    config: Document = "",
    root: str | Path | None = None,
    queue: bool = False,
) -> Batch:
    """Run subagents in a new task, wait for all results and close the task.

    For programs without an event loop. Ctrl-C cancels the subagents.

    Args:
        title: of the task; default: that of the first brief.
        config: a configuration: its text, its Path or a dict.
        root: as for `connect`.
        queue: at the concurrency limit, wait for a slot instead of failing.

    Raises:
        Refused: an event loop runs in this thread.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_run_once(_require_briefs(briefs), title, config, root, queue))
    raise Refused(
        "run_sync() was called in a thread that runs an event loop",
        code="other_loop",
        hint="use 'async with retinue.connect()' and await task.run() there",
    )


async def _run_once(
    briefs: Sequence[Brief], title: str, config: Document, root: str | Path | None, queue: bool
) -> Batch:
    named = title or next((brief.heading for brief in briefs), "run")
    async with connect(root) as r:
        task = await r.create_task(title=named, config=config)
        try:
            return await task.run(briefs, queue=queue)
        finally:
            await task.close()


@asynccontextmanager
async def _open_session(carrier: VerbTransport) -> AsyncIterator[Retinue]:
    session = RootSession(carrier)
    try:
        yield Retinue(session)
    finally:
        await session.leave()


def _require_briefs(briefs: Any) -> list[Brief]:
    """Raises:
    BadInput: the value is not a list of briefs.
    """
    # A string is iterable, too, but certainly a mistake.
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


async def _read_document(value: object, name: str, what: str) -> str:
    """Return the text of a document that is given as text, as a file or as its content.

    Raises:
        BadInput: it is something else, or the file cannot be read.
    """
    if isinstance(value, str):
        return value
    try:
        if isinstance(value, Path):
            return await asyncio.to_thread(value.read_text, encoding="utf-8")
        if isinstance(value, Mapping):
            # JSON is YAML, too.
            return json.dumps(dict(value), ensure_ascii=False, allow_nan=False)
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise BadInput(
            f"{name} cannot be read: {error}",
            code="invalid_request",
            hint=f"give the text of {what}, the Path of its file, or a dict",
        ) from None
    raise BadInput(
        f"{name} must be the text of {what}, a Path or a dict, not a value of type "
        f"{type(value).__name__}",
        code="invalid_request",
        hint=f"give the text of {what}, the Path of its file, or a dict",
    )


def _warn(answer: Mapping[str, Any], level: int = 3) -> None:
    """Issue the warnings of an answer, attributed to the caller's line."""
    for each in answer.get("warnings", ()):
        warnings.warn(each, stacklevel=level)


def _to_spawned(row: Mapping[str, Any]) -> Spawned:
    return Spawned(row["subagent_id"], row["status"], row["workspace"], row.get("warning", ""))
