"""Verbs on tasks and on single subagents: create, list, show, cancel, join, close."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from retinue.core import events
from retinue.core.errors import AGENT, PYTHON, BadInput, NotFound, Refused, StorageFailed
from retinue.core.events import Event
from retinue.core.ids import RunId, TaskId, make_slug, require_id
from retinue.core.lifecycle import State
from retinue.core.plan import RunOutcome, decide_run_outcome, estimate_outcome
from retinue.core.result import Result
from retinue.core.safe_text import shorten
from retinue.core.subagent import Counts, Subagent, Task
from retinue.core.task_config import NewConfig, TaskConfig
from retinue.ports import Tasks
from retinue.steward.journal import Journal
from retinue.steward.scheduler import Supervisor
from retinue.store.reads import Records


@dataclass(frozen=True, kw_only=True)
class SubagentList:
    """Subagents in step order; `total` counts also those left out."""

    subagents: Sequence[Subagent]
    total: int


def mark_removed_workspace(subagent: Subagent, result: Result, folders: Tasks) -> Result:
    """Return the result, marked if its workspace was removed since, as by `gc --force`."""
    is_closed = subagent.standing.state is State.CLOSED
    owner = subagent.contract.continues or subagent.id
    if not is_closed or folders.has_workspace(subagent.task, owner):
        return result
    return replace(result, workspace_removed=True)


class SubagentService:
    """Verbs on subagents."""

    def __init__(self, *, records: Records, supervisor: Supervisor, folders: Tasks) -> None:
        self._records = records
        self._supervisor = supervisor
        self._folders = folders

    def list_subagents(self, task: TaskId, *, limit: int | None) -> SubagentList:
        """Return every open subagent and the newest closed ones.

        Args:
            limit: how many closed ones; None: all of them.
        """
        task_record = self._records.get_task(task)
        if limit is None:
            found = self._records.list_newest(task_record.id, task_record.next_step)
            return SubagentList(subagents=found, total=len(found))
        # One row more than is shown tells whether any are left out, without counting.
        closed = self._records.list_newest_closed(task_record.id, limit + 1)
        cut = len(closed) > limit
        chosen = [*self._records.list_unclosed(task_record.id), *closed[1 if cut else 0 :]]
        total = self._records.count(task_record.id) if cut else len(chosen)
        return SubagentList(subagents=sorted(chosen, key=_get_step), total=total)

    def list_delegates(
        self, parent: Subagent, *, limit: int | None, mine: Callable[[Subagent], bool]
    ) -> SubagentList:
        """Return the subagents that `parent` has spawned, if they are `mine`.

        This reads every subagent of the task: call it for display, not for polling.
        """
        own = [each for each in self._records.list_delegates(parent) if mine(each)]
        closed = [each.id for each in own if each.standing.state is State.CLOSED]
        omitted = set() if limit is None else set(closed[: max(0, len(closed) - limit)])
        chosen = [each for each in own if each.id not in omitted]
        return SubagentList(subagents=chosen, total=len(own))

    def get_result(self, task: TaskId, subagent: str) -> Result:
        """Raises:
        NotFound: the subagent has no result yet.
        """
        record = self._records.get_subagent(task, subagent)
        result = self._records.get_result(record) if record.standing.settled else None
        if result is None:
            raise NotFound(
                f"{record.id} is {record.standing.status} and has no result yet",
                code="no_result_yet",
                hint="wait-any returns it as soon as it settles",
                hints={PYTHON: "wait_any() returns it as soon as it settles"},
            )
        return mark_removed_workspace(record, result, self._folders)

    async def cancel(
        self, task: TaskId, subagent: str, *, by: str, reason: str, kill: bool = False
    ) -> Result:
        """Cancel the subagent and return its recovered result.

        Raises:
            Refused: it had already ended.
        """
        record = self._records.get_subagent(task, subagent)
        await self._supervisor.cancel(record, by=by, reason=reason, kill=kill)
        return self.get_result(task, subagent)

    def send(
        self, task: TaskId, subagent: str, message: str, *, by: str, urgent: bool = False
    ) -> Subagent:
        """Send a message to a running team; an urgent one interrupts its coding agents.

        Raises:
            Refused: the subagent is not running, or is a command.
        """
        if not message.strip():
            raise BadInput("the message is empty", code="invalid_request")
        record = self._records.get_subagent(task, subagent)
        if record.contract.team is None:
            raise Refused(
                f"{record.id} is a command and cannot receive messages",
                code="not_a_team",
                hint="cancel it, or continue it with the message once it has ended",
            )
        if record.standing.status != "running":
            raise Refused(
                f"{record.id} is {record.standing.status}",
                code="not_running",
                hint="'subagent continue' gives a settled one more to do",
                hints={
                    AGENT: "continue_subagent gives a settled one more to do",
                    PYTHON: "continue_() gives a settled one more to do",
                },
            )
        self._supervisor.send(record, message, by=by, urgent=urgent)
        return record

    async def close(self, task: TaskId, subagent: str, *, by: str) -> Subagent:
        name = self._records.get_subagent(task, subagent).id
        # The join lock: a close must not come between the steps of a join.
        async with self._supervisor.joiner.suspend_joins(task, name):
            self._supervisor.closing.close(self._records.get_subagent(task, name), by=by)
        return self._records.get_subagent(task, name)


def _get_step(subagent: Subagent) -> int:
    return subagent.step_idx


MAX_TITLE = 500
MAX_DESCRIPTION = 100_000
FOR_PLAN = "plan"  # purpose of a task that is created for a plan and has nothing to do without it


@dataclass(frozen=True, kw_only=True)
class NewTask:
    """A task to create together with its first subagents."""

    title: str
    config: NewConfig
    task_config: TaskConfig  # parsed from `config`


@dataclass(frozen=True, kw_only=True)
class JoinedTask:
    """The results of all subagents of a task."""

    task: Task
    outcome: str  # of its run; an estimate while the task is open
    parts: tuple[tuple[Subagent, Result | None], ...]
    details: Mapping[str, object]  # of the run's end, once it has one


class TaskService:
    """Verbs on tasks."""

    def __init__(
        self,
        *,
        journal: Journal,
        records: Records,
        folders: Tasks,
        supervisor: Supervisor,
        get_timestamp: Callable[[], str],
    ) -> None:
        self._journal = journal
        self._records = records
        self._folders = folders
        self._supervisor = supervisor
        self._get_timestamp = get_timestamp

    def create(
        self,
        *,
        title: str,
        config: NewConfig,
        description: str = "",
        name: str = "",
        purpose: str = "",
    ) -> Task:
        """Create a task with its folder and configuration.

        Args:
            purpose: recorded with it; see `FOR_PLAN`.

        Raises:
            BadInput: the title, description or name is not usable; nothing was created.
        """
        task = self.make_draft(title=title, description=description, name=name)
        self.record(task, config, purpose)
        return task

    def make_draft(self, *, title: str, description: str = "", name: str = "") -> Task:
        """Return a valid new task that does not exist yet; `record` creates it.

        Raises:
            BadInput: the title, description or name is not usable.
        """
        if not title.strip() or len(title) > MAX_TITLE or len(description) > MAX_DESCRIPTION:
            raise BadInput(
                "a task needs a title",
                code="invalid_request",
                hint=f"1 to {MAX_TITLE} characters; {MAX_DESCRIPTION} for its description",
            )
        return self._make_task(title, description, name)

    def record(self, task: Task, config: NewConfig, purpose: str = "") -> None:
        """Create a drafted task: its folder, its configuration and its first events.

        Raises:
            BadInput: the id is taken; nothing was changed.
        """
        # The folder first: a task in the database always has its folder.
        self._folders.create(task, config)
        created = Event(
            type=events.TASK_CREATED,
            by="user",
            summary=shorten(f"task created: {task.title}"),
            payload={"purpose": purpose} if purpose else {},
        )
        try:
            self._journal.create_task(task, created)
        except BaseException:
            self._folders.discard(task.id)
            raise

    def _make_task(self, title: str, description: str, name: str) -> Task:
        suffix = secrets.token_hex(3)
        chosen = require_id(name, "task id") if name else f"{make_slug(title) or 'task'}-{suffix}"
        at = self._get_timestamp()
        return Task(
            id=TaskId(chosen),
            run=RunId(f"{chosen}-run-1"),
            title=title,
            description=description,
            state="open",
            outcome=RunOutcome.RUNNING,
            created_at=at,
            updated_at=at,
        )

    def list_newest(self, limit: int = 50, *, text: str = "") -> list[tuple[Task, Counts]]:
        """Return the newest tasks with `text` in title or id, their subagents counted by status."""
        return [
            (task, self._records.count_by_status(task.id))
            for task in self._records.list_tasks(limit, text=text)
        ]

    def show(self, task: TaskId) -> tuple[Task, Counts]:
        task_record = self._records.get_task(task)
        return task_record, self._records.count_by_status(task_record.id)

    async def cancel(self, task: TaskId, *, by: str, reason: str, kill: bool = False) -> list[str]:
        """Cancel all running and queued subagents; return the ids of those cancelled, in order."""
        name = self._records.get_task(task).id
        # Record all requests in one transaction. If the disk fails, each cancel below still
        # stops its child and reports the error.
        with suppress(StorageFailed):
            self._journal.settle()
            self._supervisor.closing.request(self._records.list_unclosed(name), by, reason)
        unclosed = self._records.list_unclosed(name)
        cancelled = await self._supervisor.cancel_all(unclosed, by=by, reason=reason, kill=kill)
        return [each.id for each in cancelled]

    def join(self, task: TaskId) -> JoinedTask:
        """Return every subagent of the task with its result, in step order."""
        task_record, counts = self.show(task)
        subagents = self._records.list_newest(task_record.id, task_record.next_step)
        parts = tuple((each, self._get_result(each)) for each in subagents)
        verdict = estimate_outcome(task_record, counts).value
        details = self.find_end(task_record)
        return JoinedTask(task=task_record, outcome=verdict, parts=parts, details=details)

    def find_end(self, task: Task) -> Mapping[str, object]:
        """Return the recorded details of the run's end; empty while the task is open."""
        if task.state != "closed":
            return {}
        # The end of the run is among a task's last events.
        newest = self._records.list_events(task.id, after=max(0, task.last_seq - 5), limit=10)
        ends = [each.event.payload for each in newest if each.event.type == events.RUN_ENDED]
        return ends[-1] if ends else {}

    def _get_result(self, subagent: Subagent) -> Result | None:
        # A running subagent may have an older result: the questions of its previous attempt.
        result = self._records.get_result(subagent) if subagent.standing.settled else None
        return result and mark_removed_workspace(subagent, result, self._folders)

    async def close(
        self, task: TaskId, *, by: str, details: Mapping[str, object] | None = None
    ) -> Task:
        """Close every subagent, record the outcome of the run, and close the task.

        Args:
            details: recorded with the end of the run.

        Raises:
            Refused: some of its subagents are still working.
        """
        task_record = self._records.get_task(task)
        self.require_idle(task_record.id)
        async with self._supervisor.joiner.suspend_joins(task_record.id):
            return self._close(self._records.get_task(task_record.id), by, details or {})

    def close_unstarted(self, task: TaskId, reason: str) -> None:
        """Close a task without subagents that an earlier steward could not start."""
        known = self._records.get_task(task)
        ended = make_run_ended(known, RunOutcome.FAILED, {"reason": reason})
        closed = Event(type=events.TASK_CLOSED, summary=f"task {task} closed: {reason}")
        self._journal.record(task, [ended, closed])

    def require_idle(self, task: TaskId) -> list[Subagent]:
        """Return the subagents that are not closed.

        Raises:
            Refused: some of them are still working.
        """
        unclosed = self._records.list_unclosed(task)
        working = [s.id for s in unclosed if s.standing.holds_slot or _is_joined_by_its_run(s)]
        if working:
            raise Refused(
                f"{len(working)} subagents of {task} are still working: {', '.join(working[:5])}",
                code="task_running",
                hint=f"wait for them, or 'retinue task cancel {task}'",
                hints={PYTHON: "wait_all() for them, or cancel() each"},
            )
        return unclosed

    def _close(self, task: Task, by: str, details: Mapping[str, object]) -> Task:
        if task.state == "closed":
            return task
        for subagent in self.require_idle(task.id):
            self._supervisor.closing.close(subagent, by=by)
        verdict = decide_run_outcome(self._records.count_by_status(task.id))
        closed = Event(type=events.TASK_CLOSED, by=by, summary=f"task {task.id} closed")
        self._journal.record(task.id, [make_run_ended(task, verdict, details), closed])
        return self._records.get_task(task.id)


def make_run_ended(task: Task, verdict: RunOutcome, details: Mapping[str, object]) -> Event:
    """Return the event that ends a task's run, with its details."""
    never = details.get("not_started")
    left = f"; not started: {', '.join(never)}" if isinstance(never, Mapping) and never else ""
    return Event(
        type=events.RUN_ENDED,
        summary=shorten(f"run {task.run} {verdict}{left}"),
        payload={**details, "outcome": verdict.value},
    )


def _is_joined_by_its_run(subagent: Subagent) -> bool:
    waiting = subagent.standing.state is State.WAITING_FOR_MERGE
    return waiting and subagent.contract.outputs.in_order
