"""What people look at, a page at a time: no question takes longer because a task is old."""

from __future__ import annotations

import json
import sqlite3
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from retinue.domain.budget import Spending
from retinue.domain.event import Recorded
from retinue.domain.ids import SubagentId, TaskId
from retinue.domain.lane import Lane, Stint
from retinue.domain.newest import Newest
from retinue.domain.page import Matches, Paid, Wanted
from retinue.domain.subagent import Gate, Task, Totals
from retinue.store.database import Database
from retinue.store.records import SqliteRecords
from retinue.store.rows import gate_of, recorded_of, standing_of

SCANNED = 5000  # events that one search looks at, whether they match or not
GATES = 50
BOOKINGS = 500
KEPT = 256  # tasks whose totals are remembered
SHORT_SECONDS = 0.02
SHARE_OF_TIME = 0.05
LANES = {"all": "lanes", "open": "lanes_open", "failed": "lanes_failed"}


class _Kept(NamedTuple):
    totals: Totals
    until: float  # when they are to be added up again
    closed: bool


class Pages:
    def __init__(self, database: Database, records: SqliteRecords) -> None:
        self._db = database
        self._records = records
        self._totals = Newest[TaskId, _Kept](KEPT)

    def totals(self, task: Task) -> Totals:
        """What the task's subagents came to.

        That of a closed one is added up once, that of an open one anew; where that takes long,
        not so often that it takes more than its share of time.
        """
        known = self._totals.get(task.id)
        if known is not None and (known.closed or time.monotonic() < known.until):
            return known.totals
        began = time.monotonic()
        totals = self._records.totals(task.id)
        took = time.monotonic() - began
        until = began + took / SHARE_OF_TIME if took > SHORT_SECONDS else began
        self._totals[task.id] = _Kept(totals, until, task.state == "closed")
        return totals

    def lanes(self, task: TaskId, *, which: str, first: int, limit: int) -> list[Lane]:
        """The subagents from that step on; of a part of them, from that place in it on."""
        rows = self._db.rows(LANES[which], task_id=task, first=first, limit=limit)
        return self._with_stints(task, rows)

    def lane(self, task: TaskId, subagent: SubagentId) -> Lane:
        rows = self._db.rows("lane", task_id=task, sub_agent_id=subagent)
        return self._with_stints(task, rows)[0]

    def event(self, task: TaskId, seq: int) -> Recorded | None:
        row = self._db.one("event", task_id=task, seq=seq)
        return None if row is None else recorded_of(row)

    def search(self, task: TaskId, wanted: Wanted, *, before: int, limit: int) -> Matches:
        """The newest matches before that number, among so many events that nobody waits long."""
        floor = max(1, before - SCANNED)
        rows = self._db.rows(
            "events_matching",
            task_id=task,
            before=before,
            floor=floor,
            sub_agent_id=wanted.subagent,
            kinds=json.dumps(wanted.kinds),
            text=wanted.text,
            limit=limit,
        )
        reached = floor if len(rows) < limit else rows[-1]["seq"] if rows else before
        return Matches(
            events=[recorded_of(row) for row in rows], before=reached if reached > 1 else 0
        )

    def open_gates(self, task: TaskId) -> list[Gate]:
        return [gate_of(row) for row in self._db.rows("open_gates", task_id=task, limit=GATES)]

    def all_open_gates(self) -> list[tuple[TaskId, Gate]]:
        """Those of every open task, the oldest task first."""
        rows = self._db.rows("open_gates_of_root")
        return [(TaskId(row["task_id"]), gate_of(row)) for row in rows]

    def paid(self, task: TaskId, subagent: SubagentId) -> list[Paid]:
        """The newest requests to models, oldest first."""
        rows = self._db.rows("newest_bookings", task_id=task, sub_agent_id=subagent, limit=BOOKINGS)
        return [_paid(row) for row in reversed(rows)]

    def _with_stints(self, task: TaskId, rows: Sequence[sqlite3.Row]) -> list[Lane]:
        names = json.dumps([row["sub_agent_id"] for row in rows])
        stints: dict[str, list[Stint]] = defaultdict(list)
        for row in self._db.rows("stints", task_id=task, names=names):
            stints[row["sub_agent_id"]].append(
                Stint(
                    number=row["number"],
                    started_at=row["started_at"],
                    ended_at=row["ended_at"],
                    status=row["status"] or "",
                )
            )
        return [_lane(row, tuple(stints[row["sub_agent_id"]])) for row in rows]


def _lane(row: sqlite3.Row, stints: tuple[Stint, ...]) -> Lane:
    return Lane(
        id=SubagentId(row["sub_agent_id"]),
        step_idx=row["step_idx"],
        title=row["title"] or "",
        standing=standing_of(row),
        created_at=row["created_at"],
        ended_at=row["ended_at"],
        settled_at=row["settled_at"] or "",
        stints=stints,
    )


def _paid(row: sqlite3.Row) -> Paid:
    return Paid(
        ts=row["ts"],
        attempt=row["attempt"],
        provider=row["provider"],
        model=row["model"],
        status=row["status"],
        spending=Spending(
            input_tokens=row["input_tokens"],
            output_tokens=row["output_tokens"],
            cost=row["cost"] or 0.0,
        ),
    )
