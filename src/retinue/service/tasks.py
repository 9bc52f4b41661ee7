"""Tasks: created, looked at, cancelled, joined and closed."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from retinue.domain import event as events
from retinue.domain.errors import BadInput, Refused, StorageFailed
from retinue.domain.event import Event, Recorded, shorten
from retinue.domain.gate import RunOutcome, outcome_by_now, outcome_of
from retinue.domain.ids import RunId, TaskId, require_id, slug
from retinue.domain.lifecycle import State
from retinue.domain.policy import NewConfig
from retinue.domain.result import Result
from retinue.domain.subagent import Counts, Subagent, Task
from retinue.ports import Records, Tasks
from retinue.supervisor.journal import Journal
from retinue.supervisor.supervisor import Supervisor

MAX_TITLE = 500
MAX_DESCRIPTION = 100_000
PAGE = 1000


@dataclass(frozen=True, kw_only=True)
class Joined:
    """All of a task's ends, side by side."""

    task: Task
    outcome: str  # of its run, by now
    parts: tuple[tuple[Subagent, Result | None], ...]
    details: Mapping[str, object]  # of the run's end, once it has one


class TaskVerbs:
    def __init__(
        self,
        journal: Journal,
        records: Records,
        tasks: Tasks,
        supervisor: Supervisor,
        now: Callable[[], str],
    ) -> None:
        self._journal = journal
        self._records = records
        self._tasks = tasks
        self._supervisor = supervisor
        self._now = now

    def create(
        self,
        *,
        title: str,
        config: NewConfig,
        description: str = "",
        name: str = "",
    ) -> Task:
        """The task exists, with its folder and the configuration it will keep.

        Raises:
            BadInput: nothing exists.
        """
        if not title.strip() or len(title) > MAX_TITLE or len(description) > MAX_DESCRIPTION:
            raise BadInput(
                "a task needs a title",
                code="invalid_request",
                hint=f"1 to {MAX_TITLE} characters; {MAX_DESCRIPTION} for its description",
            )
        task = self._new(title, description, name)
        self._tasks.create(task, config)
        created = Event(
            type=events.TASK_CREATED, by="user", summary=shorten(f"task created: {title}")
        )
        try:
            self._journal.create_task(task, created)
        except BaseException:
            self._tasks.discard(task.id)
            raise
        return task

    def _new(self, title: str, description: str, name: str) -> Task:
        suffix = secrets.token_hex(3)
        chosen = require_id(name, "task id") if name else f"{slug(title) or 'task'}-{suffix}"
        at = self._now()
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

    def newest(self, limit: int = 50) -> list[tuple[Task, Counts]]:
        """The newest tasks, each with how many of its subagents stand where."""
        return [(task, self._records.counts(task.id)) for task in self._records.tasks(limit)]

    def show(self, task: TaskId) -> tuple[Task, Counts]:
        known = self._records.task(task)
        return known, self._records.counts(known.id)

    def events(self, task: TaskId, *, after: int, limit: int) -> list[Recorded]:
        """The task's events after that number, oldest first."""
        return self._records.events(self._records.task(task).id, after=after, limit=limit)

    async def cancel(self, task: TaskId, *, by: str, reason: str, kill: bool = False) -> list[str]:
        """No subagent of the task works or waits to; the ids of those that were ended, in order."""
        name = self._records.task(task).id
        with suppress(StorageFailed):  # which is met again by each, once it is stopped
            self._journal.settle()
            self._supervisor.closing.request(self._records.unclosed(name), by, reason)
        # The last first, so that nobody is started to be stopped; then all end side by side.
        known = self._records.unclosed(name)[::-1]
        ends = await asyncio.gather(
            *(self._supervisor.cancel(each, by=by, reason=reason, kill=kill) for each in known),
            return_exceptions=True,
        )
        for end in ends:
            if isinstance(end, BaseException) and not isinstance(end, Refused):
                raise end
        both = zip(reversed(known), reversed(ends), strict=True)
        return [each.id for each, end in both if end is None]

    def join(self, task: TaskId) -> Joined:
        """Every subagent with what it gave, in step order."""
        known, counts = self.show(task)
        subagents = self._records.newest(known.id, known.next_step)
        parts = tuple((each, self._result(each)) for each in subagents)
        verdict, details = outcome_by_now(known, counts).value, self.end_of(known)
        return Joined(task=known, outcome=verdict, parts=parts, details=details)

    def end_of(self, known: Task) -> Mapping[str, object]:
        """How the run of a closed task ended, as it was recorded; nothing of an open one."""
        if known.state != "closed":
            return {}
        newest = self._records.events(known.id, after=max(0, known.last_seq - 5), limit=10)
        ends = [each.event.payload for each in newest if each.event.type == events.RUN_ENDED]
        return ends[-1] if ends else {}

    def _result(self, subagent: Subagent) -> Result | None:
        """None while it works: what it asked before it went on is no result."""
        return self._records.result(subagent) if subagent.standing.settled else None

    async def close(
        self, task: TaskId, *, by: str, details: Mapping[str, object] | None = None
    ) -> Task:
        """Every subagent is closed, the run has its outcome, the task takes no more work.

        Args:
            details: what else is to be known of the run's end.

        Raises:
            Refused: some of its subagents still work.
        """
        known = self._records.task(task)
        self.require_idle(known.id)
        async with self._supervisor.joiner.left_out(known.id):
            return self._close(self._records.task(known.id), by, details or {})

    def require_idle(self, task: TaskId) -> list[Subagent]:
        """Those that are not closed, none of which works."""
        unclosed = self._records.unclosed(task)
        working = [s.id for s in unclosed if s.standing.holds_slot or _is_joined_by_its_run(s)]
        if working:
            raise Refused(
                f"{len(working)} subagents of {task} still work: {', '.join(working[:5])}",
                code="task_running",
                hint=f"wait for them, or 'retinue task cancel {task}'",
            )
        return unclosed

    def _close(self, known: Task, by: str, details: Mapping[str, object]) -> Task:
        if known.state == "closed":
            return known
        for subagent in self.require_idle(known.id):
            self._supervisor.closing.close(subagent, by=by)
        verdict = outcome_of(self._records.counts(known.id))
        closed = Event(type=events.TASK_CLOSED, by=by, summary=f"task {known.id} closed")
        self._journal.record(known.id, [run_ended(known, verdict, details), closed])
        return self._records.task(known.id)


def every_event(records: Records, task: TaskId) -> Iterator[Recorded]:
    """From the task's first on; read a page at a time."""
    after = 0
    while page := records.events(task, after=after, limit=PAGE):
        yield from page
        after = page[-1].seq


def run_ended(task: Task, verdict: RunOutcome, details: Mapping[str, object]) -> Event:
    """The end of a task's run, with what is to be known of it later."""
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
