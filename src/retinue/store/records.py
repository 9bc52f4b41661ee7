"""What the store knows, for reading."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable
from weakref import WeakValueDictionary

from retinue.domain.contract import Contract
from retinue.domain.errors import NotFound
from retinue.domain.event import Recorded
from retinue.domain.ids import SubagentId, TaskId
from retinue.domain.lifecycle import Standing, State
from retinue.domain.newest import Newest
from retinue.domain.result import Result
from retinue.domain.subagent import Attempt, Counts, Gate, Subagent, Task, Totals
from retinue.store.database import Database
from retinue.store.rows import attempt_of, gate_of, recorded_of, subagent_of, task_of
from retinue.wire.result import result_from_text

MOST_RECENT = 256
Key = tuple[TaskId, SubagentId]


class Recent:
    """What the store's only writer has just committed or read, so that it need not be read again:
    whoever is told of a change looks at the same few rows.

    Whatever somebody still works with is known for as long, and costs nothing more.
    """

    def __init__(self) -> None:
        self.tasks = Newest[TaskId, Task](MOST_RECENT)
        self._subagents: WeakValueDictionary[Key, Subagent] = WeakValueDictionary()
        self._contracts: WeakValueDictionary[str, Contract] = WeakValueDictionary()  # by their hash
        self._held = Newest[Key, Subagent](MOST_RECENT)  # though nobody may work with them

    def keep(self, task: Task, moved: Iterable[Subagent]) -> None:
        """They stand like this now."""
        self.tasks[task.id] = task
        for subagent in moved:
            self.add(subagent)

    def add(self, subagent: Subagent) -> None:
        key = (subagent.task, subagent.id)
        self._subagents[key] = subagent
        self._contracts[subagent.contract_sha256] = subagent.contract
        self._held[key] = subagent

    def subagent(self, task: TaskId, name: str) -> Subagent | None:
        return self._subagents.get((task, SubagentId(name)))

    def contract(self, sha256: str) -> Contract | None:
        return self._contracts.get(sha256)


class SqliteRecords:
    """Implements `Records`."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self.recent = Recent()

    def task(self, task: TaskId, *, fresh: bool = False) -> Task:
        """Args:
        fresh: as the database has it, which a transaction that is under way may have changed.
        """
        known = None if fresh else self.recent.tasks.get(task)
        if known is not None:
            return known
        row = self._db.one("task", task_id=task)
        if row is None:
            raise NotFound(
                f"no task {task[:80]!a}", code="unknown_task", hint="see 'retinue task list'"
            )
        return task_of(row)

    def tasks(self, limit: int, *, open_only: bool = False) -> list[Task]:
        """The newest first; a negative limit is none."""
        known = {"limit": limit, "open_only": open_only}
        return [task_of(row) for row in self._db.rows("tasks_page", **known)]

    def last_seqs(self) -> dict[TaskId, int]:
        """The number of every task's newest event."""
        return {TaskId(row["task_id"]): row["last_seq"] for row in self._db.rows("last_seqs")}

    def subagent(self, task: TaskId, subagent: str) -> Subagent:
        if (known := self.recent.subagent(task, subagent)) is not None:
            return known
        row = self._db.one("subagent", task_id=task, sub_agent_id=subagent)
        if row is None:
            self.task(task)
            raise NotFound(
                f"no subagent {subagent[:80]!a} in task {task}",
                code="unknown_subagent",
                hint="a list of the subagents shows which there are",
            )
        found = self._subagent_of(row)
        if not self._db.is_writing:  # else it may come to nothing
            self.recent.add(found)
        return found

    def _subagent_of(self, row: sqlite3.Row) -> Subagent:
        return subagent_of(row, self.recent.contract(row["contract_sha256"]))

    def unclosed(self, task: TaskId) -> list[Subagent]:
        return [self._subagent_of(row) for row in self._db.rows("open_subagents", task_id=task)]

    def waiting(self, task: TaskId, limit: int) -> list[SubagentId]:
        """The first that are created and that nobody wants to end, in step order."""
        rows = self._db.rows("waiting_subagents", task_id=task, limit=limit)
        return [SubagentId(name) for (name,) in rows]

    def newest(self, task: TaskId, limit: int) -> list[Subagent]:
        rows = self._db.rows("newest_subagents", task_id=task, limit=limit)
        return [self._subagent_of(row) for row in reversed(rows)]

    def attempts(self, subagent: Subagent) -> list[Attempt]:
        rows = self._db.rows("attempts", task_id=subagent.task, sub_agent_id=subagent.id)
        return [attempt_of(row) for row in rows]

    def result(self, subagent: Subagent) -> Result | None:
        row = self._db.one("result", task_id=subagent.task, sub_agent_id=subagent.id)
        return None if row is None else result_from_text(row["result_json"])

    def events(self, task: TaskId, *, after: int, limit: int) -> list[Recorded]:
        rows = self._db.rows("events_after", task_id=task, after=after, limit=limit)
        return [recorded_of(row) for row in rows]

    def counts(self, task: TaskId) -> Counts:
        """Told by indexes of those that are open and those that failed: closed ones are many."""
        found: Counter[str] = Counter()
        for row in self._db.rows("standings", task_id=task):
            stands = Standing(
                state=State(row["state"]),
                blocked=bool(row["blocked"]),
                cancelled=bool(row["cancelled"]),
                settled_seq=row["settled"],
            )
            found[stands.status] += row["number"]
        unclosed = found.total()
        ((everyone,),) = self._db.rows("count_subagents", task_id=task)
        (ended,) = self._db.rows("ended_badly", task_id=task)
        found["completed"] += everyone - unclosed - ended["failed"]
        found["failed"] += ended["failed"] - ended["cancelled"]
        found["cancelled"] += ended["cancelled"]
        return Counts(total=everyone, unclosed=unclosed, **found)

    def totals(self, task: TaskId) -> Totals:
        parts = self._db.rows("usage_totals", task_id=task)
        others = [part for part in parts if not part["is_root"]]
        lead = [part for part in parts if part["is_root"]]
        return Totals(
            subagents=sum(part["subagents"] for part in others),
            input_tokens=sum(part["input_tokens"] for part in others),
            output_tokens=sum(part["output_tokens"] for part in others),
            estimated_cost=sum(part["cost"] for part in others),
            root_input_tokens=sum(part["input_tokens"] for part in lead),
            root_output_tokens=sum(part["output_tokens"] for part in lead),
            root_cost=sum((part["cost"] for part in lead), 0.0),
        )

    def gates(self, task: TaskId) -> list[Gate]:
        return [gate_of(row) for row in self._db.rows("gates", task_id=task)]
