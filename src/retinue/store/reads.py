"""Read access to the store."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from weakref import WeakValueDictionary

from retinue.core.bounded_dict import BoundedDict
from retinue.core.contract import Contract
from retinue.core.errors import AGENT, PYTHON, NotFound, StorageFailed
from retinue.core.events import Recorded
from retinue.core.ids import SubagentId, TaskId
from retinue.core.lifecycle import Standing, State
from retinue.core.result import Result
from retinue.core.subagent import (
    SUCCESSOR_PREFIX,
    Attempt,
    Claim,
    Counts,
    Gate,
    Subagent,
    Task,
    Totals,
)
from retinue.formats.result_json import result_from_text
from retinue.store.database import Database
from retinue.store.row_mapping import to_attempt, to_gate, to_recorded, to_subagent, to_task

MOST_RECENT = 256
Key = tuple[TaskId, SubagentId]


class RecentRows:
    """Cache of rows that the store's only writer has just committed or read.

    Subscribers of a change read the same few rows again. Objects that are still in use elsewhere
    stay cached as well, by weak references that cost nothing.
    """

    def __init__(self) -> None:
        self.tasks = BoundedDict[TaskId, Task](MOST_RECENT)
        self._subagents: WeakValueDictionary[Key, Subagent] = WeakValueDictionary()
        self._contracts: WeakValueDictionary[str, Contract] = WeakValueDictionary()  # by hash
        self._held = BoundedDict[Key, Subagent](MOST_RECENT)  # strong references to the newest

    def keep(self, task: Task, moved: Iterable[Subagent]) -> None:
        """Store the committed state of a task and its subagents."""
        self.tasks[task.id] = task
        for subagent in moved:
            self.add(subagent)

    def add(self, subagent: Subagent) -> None:
        key = (subagent.task, subagent.id)
        self._subagents[key] = subagent
        self._contracts[subagent.contract_sha256] = subagent.contract
        self._held[key] = subagent

    def forget(self, task: TaskId) -> None:
        """Drop all rows of a task that was deleted."""
        self.tasks.pop(task, None)
        for key in [key for key in self._subagents if key[0] == task]:
            self._subagents.pop(key, None)
            self._held.pop(key, None)

    def get_subagent(self, task: TaskId, name: str) -> Subagent | None:
        return self._subagents.get((task, SubagentId(name)))

    def get_contract(self, sha256: str) -> Contract | None:
        return self._contracts.get(sha256)


class SqliteRecords:
    """Implements `Records`."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self.recent = RecentRows()
        # Number of subagents per task, and the newest row counted. Only later rows need counting,
        # until a task is deleted.
        self._counted: dict[TaskId, tuple[int, int]] = {}

    def get_task(self, task: TaskId, *, fresh: bool = False) -> Task:
        """Return a task.

        Args:
            fresh: read the database, which the current transaction may have changed.

        Raises:
            NotFound: there is no such task.
        """
        known = None if fresh else self.recent.tasks.get(task)
        if known is not None:
            return known
        row = self._db.fetch_one("task", task_id=task)
        if row is None:
            gone = None
            with suppress(StorageFailed):  # a root of an older version, open read-only
                gone = self._db.fetch_one("last_deletion", task_id=task)
            raise NotFound(
                f"no task {task[:80]!a}"
                if gone is None
                else f"task {gone['task_id']} was deleted at {gone['deleted_at']}",
                code="unknown_task",
                hint="see 'retinue task list'",
                hints={
                    AGENT: "spawn_subagents creates one; list_subagents names what is in it",
                    PYTHON: "Retinue.tasks() lists them",
                },
            )
        return to_task(row)

    def forget_task(self, task: TaskId) -> None:
        """Drop what is cached of a deleted task."""
        self.recent.forget(task)
        # New rows may get the numbers of deleted ones, so count all again.
        self._counted.clear()

    def list_tasks(self, limit: int, *, open_only: bool = False, text: str = "") -> list[Task]:
        """Return tasks with `text` in title or id, newest first; a negative limit means all."""
        known = {"limit": limit, "open_only": open_only, "text": text}
        return [to_task(row) for row in self._db.fetch_rows("tasks_page", **known)]

    def list_task_ids(self, prefix: str, limit: int) -> list[str]:
        """Return ids of tasks that begin with the prefix, newest first."""
        rows = self._db.fetch_rows("task_ids", prefix=prefix, limit=limit)
        return [str(row["task_id"]) for row in rows]

    def list_subagent_ids(self, task: TaskId, prefix: str, limit: int) -> list[str]:
        """Return ids of the task's subagents that begin with the prefix, newest first."""
        rows = self._db.fetch_rows("subagent_ids", task_id=task, prefix=prefix, limit=limit)
        return [str(row["sub_agent_id"]) for row in rows]

    def list_last_seqs(self) -> dict[TaskId, int]:
        """Return the number of every task's newest event."""
        return {TaskId(row["task_id"]): row["last_seq"] for row in self._db.fetch_rows("last_seqs")}

    def get_subagent(self, task: TaskId, subagent: str) -> Subagent:
        """Return a subagent.

        Raises:
            NotFound: there is no such task, or no such subagent in it.
        """
        if (known := self.recent.get_subagent(task, subagent)) is not None:
            return known
        row = self._db.fetch_one("subagent", task_id=task, sub_agent_id=subagent)
        if row is None:
            self.get_task(task)
            raise NotFound(
                f"no subagent {subagent[:80]!a} in task {task}",
                code="unknown_subagent",
                hint="list the subagents of the task to see their ids",
            )
        found = self._to_subagent(row)
        # Do not cache uncommitted rows: the transaction may be rolled back.
        if not self._db.is_writing:
            self.recent.add(found)
        return found

    def _to_subagent(self, row: sqlite3.Row) -> Subagent:
        return to_subagent(row, self.recent.get_contract(row["contract_sha256"]))

    def list_unclosed(self, task: TaskId) -> list[Subagent]:
        return [
            self._to_subagent(row) for row in self._db.fetch_rows("open_subagents", task_id=task)
        ]

    def list_lineage(self, subagent: Subagent) -> list[Subagent]:
        """Return the subagents that continue one another in one workspace, oldest first."""
        origin = subagent.contract.continues or subagent.id
        rows = self._db.fetch_rows(
            "line", task_id=subagent.task, origin=origin, prefix=origin[:SUCCESSOR_PREFIX]
        )
        return [self._to_subagent(row) for row in rows]

    def list_waiting(self, task: TaskId, limit: int) -> list[SubagentId]:
        """Return the first subagents that wait for a slot and were not cancelled, in step order."""
        rows = self._db.fetch_rows("waiting_subagents", task_id=task, limit=limit)
        return [SubagentId(name) for (name,) in rows]

    def list_merge_claims(self, task: TaskId) -> list[Claim]:
        """Return what the unfinished subagents may change whose output will be merged."""
        return [
            Claim(
                subagent=SubagentId(row["sub_agent_id"]),
                owns=tuple(json.loads(row["owns"] or "[]")),
                working=row["state"] == "running",
            )
            for row in self._db.fetch_rows("merging_subagents", task_id=task)
        ]

    def list_newest(self, task: TaskId, limit: int) -> list[Subagent]:
        rows = self._db.fetch_rows("newest_subagents", task_id=task, limit=limit)
        return [self._to_subagent(row) for row in reversed(rows)]

    def list_newest_closed(self, task: TaskId, limit: int) -> list[Subagent]:
        rows = self._db.fetch_rows("newest_closed", task_id=task, limit=limit)
        return [self._to_subagent(row) for row in reversed(rows)]

    def list_delegates(self, subagent: Subagent) -> list[Subagent]:
        """Return the subagents that this one delegated to, in step order."""
        rows = self._db.fetch_rows("delegates_of", task_id=subagent.task, sub_agent_id=subagent.id)
        return [self._to_subagent(row) for row in rows]

    def list_attempts(self, subagent: Subagent) -> list[Attempt]:
        rows = self._db.fetch_rows("attempts", task_id=subagent.task, sub_agent_id=subagent.id)
        return [to_attempt(row) for row in rows]

    def get_result(self, subagent: Subagent) -> Result | None:
        row = self._db.fetch_one("result", task_id=subagent.task, sub_agent_id=subagent.id)
        return None if row is None else result_from_text(row["result_json"])

    def list_events(self, task: TaskId, *, after: int, limit: int) -> list[Recorded]:
        rows = self._db.fetch_rows("events_after", task_id=task, after=after, limit=limit)
        return [to_recorded(row) for row in rows]

    def count_by_status(self, task: TaskId) -> Counts:
        """Return the number of subagents by status."""
        # Count open and failed subagents by their indexes; the rest is completed. There may be
        # very many closed ones.
        found: Counter[str] = Counter()
        for row in self._db.fetch_rows("standings", task_id=task):
            stands = Standing(
                state=State(row["state"]),
                blocked=bool(row["blocked"]),
                cancelled=bool(row["cancelled"]),
                settled_seq=row["settled"],
            )
            found[stands.status] += row["number"]
        unclosed = found.total()
        total = self.count(task)
        (ended,) = self._db.fetch_rows("ended_badly", task_id=task)
        found["completed"] += total - unclosed - ended["failed"]
        found["failed"] += ended["failed"] - ended["cancelled"]
        found["cancelled"] += ended["cancelled"]
        return Counts(total=total, unclosed=unclosed, **found)

    def count(self, task: TaskId) -> int:
        """Return the number of subagents of a task; the cost does not grow with their number."""
        known = self._counted.get(task)
        if known is None:
            (row,) = self._db.fetch_rows("count_subagents", task_id=task)
            number = int(row["number"])
            last = int(row["last"] or 0)
        else:
            before, last = known
            (row,) = self._db.fetch_rows("count_later_subagents", task_id=task, last=last)
            number = before + int(row["number"])
            last = int(row["last"] or last)
        # Do not cache uncommitted counts: the transaction may be rolled back.
        if not self._db.is_writing:
            self._counted[task] = number, last
        return number

    def sum_totals(self, task: TaskId) -> Totals:
        parts = self._db.fetch_rows("usage_totals", task_id=task)
        others = [part for part in parts if not part["is_root"]]
        lead = [part for part in parts if part["is_root"]]
        unpriced = self._db.fetch_rows("unpriced_models", task_id=task)
        return Totals(
            subagents=sum(part["subagents"] for part in others),
            input_tokens=sum(part["input_tokens"] for part in others),
            output_tokens=sum(part["output_tokens"] for part in others),
            estimated_cost=sum(part["cost"] for part in others),
            root_input_tokens=sum(part["input_tokens"] for part in lead),
            root_output_tokens=sum(part["output_tokens"] for part in lead),
            root_cost=sum((part["cost"] for part in lead), 0.0),
            unpriced_models=tuple(row["model"] for row in unpriced if not row["is_root"]),
            root_unpriced_models=tuple(row["model"] for row in unpriced if row["is_root"]),
        )

    def list_gates(self, task: TaskId) -> list[Gate]:
        return [to_gate(row) for row in self._db.fetch_rows("gates", task_id=task)]
