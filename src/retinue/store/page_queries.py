"""Paged queries for people; their cost does not grow with the age of a task."""

from __future__ import annotations

import json
import sqlite3
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from retinue.core.bounded_dict import BoundedDict
from retinue.core.budget import Spending
from retinue.core.events import Matches, Paid, Recorded, Wanted
from retinue.core.ids import SubagentId, TaskId
from retinue.core.subagent import Gate, Task, Totals
from retinue.core.timeline import Lane, Stint
from retinue.store.database import Database
from retinue.store.reads import SqliteRecords
from retinue.store.row_mapping import to_gate, to_recorded, to_standing

SCANNED = 5000  # events that one search reads, matching or not
GATES = 50
BOOKINGS = 500
KEPT = 256  # tasks with cached totals
SHORT_SECONDS = 0.02
SHARE_OF_TIME = 0.05
LANES = {"all": "lanes", "open": "lanes_open", "failed": "lanes_failed"}


class _CachedTotals(NamedTuple):
    totals: Totals
    until: float  # time from which they are computed again
    closed: bool


class PageQueries:
    def __init__(self, database: Database, records: SqliteRecords) -> None:
        self._db = database
        self._records = records
        self._totals = BoundedDict[TaskId, _CachedTotals](KEPT)
        self._planned = BoundedDict[TaskId, tuple[int, dict[int, str]]](KEPT)

    def get_totals(self, task: Task) -> Totals:
        """Return the totals of a task.

        Those of a closed task are computed once. Those of an open task are computed each time, but
        when that is slow, only so often that it takes a small share of the time.
        """
        known = self._totals.get(task.id)
        if known is not None and (known.closed or time.monotonic() < known.until):
            return known.totals
        began = time.monotonic()
        totals = self._records.sum_totals(task.id)
        took = time.monotonic() - began
        until = began + took / SHARE_OF_TIME if took > SHORT_SECONDS else began
        self._totals[task.id] = _CachedTotals(totals, until, task.state == "closed")
        return totals

    def list_lanes(self, task: TaskId, *, which: str, first: int, limit: int) -> list[Lane]:
        """Return subagents from step `first` on; of a filtered list, from that position on."""
        rows = self._db.fetch_rows(LANES[which], task_id=task, first=first, limit=limit)
        return self._build_lanes(task, rows)

    def list_planned(self, task: Task, *, first: int, limit: int) -> dict[int, str]:
        """Return the names of the planned steps at these positions, started or not.

        Events are read once: a later call continues where the last one ended.
        """
        seen, names = self._planned.get(task.id) or (0, {})
        if seen < task.last_seq:
            rows = self._db.fetch_rows(
                "plans_of_task", task_id=task.id, after=seen, last=task.last_seq
            )
            names = dict(names)
            for row in rows:
                payload = json.loads(row["payload"])
                start = payload.get("first", 0)
                names |= {start + place: str(name) for place, name in enumerate(payload["order"])}
            self._planned[task.id] = (task.last_seq, names)
        wanted = range(first, first + limit)
        return {place: names[place] for place in wanted if place in names}

    def get_lane(self, task: TaskId, subagent: SubagentId) -> Lane:
        rows = self._db.fetch_rows("lane", task_id=task, sub_agent_id=subagent)
        return self._build_lanes(task, rows)[0]

    def get_event(self, task: TaskId, seq: int) -> Recorded | None:
        row = self._db.fetch_one("event", task_id=task, seq=seq)
        return None if row is None else to_recorded(row)

    def search(self, task: TaskId, wanted: Wanted, *, before: int, limit: int) -> Matches:
        """Return the newest matches before that event, among a limited number of events."""
        floor = max(1, before - SCANNED)
        rows = self._db.fetch_rows(
            "events_matching",
            task_id=task,
            before=before,
            floor=floor,
            sub_agent_id=wanted.subagent,
            kinds=json.dumps(wanted.kinds),
            text=wanted.text,
            limit=limit,
        )
        # The next search continues before this event, even if this one found nothing.
        reached = floor if len(rows) < limit else rows[-1]["seq"] if rows else before
        return Matches(
            events=[to_recorded(row) for row in rows], before=reached if reached > 1 else 0
        )

    def list_open_gates(self, task: TaskId) -> list[Gate]:
        return [
            to_gate(row) for row in self._db.fetch_rows("open_gates", task_id=task, limit=GATES)
        ]

    def list_all_open_gates(self) -> list[tuple[TaskId, Gate]]:
        """Return the open gates of every open task, the oldest task first."""
        rows = self._db.fetch_rows("open_gates_of_root")
        return [(TaskId(row["task_id"]), to_gate(row)) for row in rows]

    def list_paid(self, task: TaskId, subagent: SubagentId) -> list[Paid]:
        """Return the newest model requests, in the order in which they ended."""
        rows = self._db.fetch_rows(
            "newest_bookings", task_id=task, sub_agent_id=subagent, limit=BOOKINGS
        )
        # Entries are numbered when a request begins, and have the time of its end.
        return sorted((_to_paid(row) for row in reversed(rows)), key=lambda paid: paid.ts)

    def _build_lanes(self, task: TaskId, rows: Sequence[sqlite3.Row]) -> list[Lane]:
        names = json.dumps([row["sub_agent_id"] for row in rows])
        stints: dict[str, list[Stint]] = defaultdict(list)
        for row in self._db.fetch_rows("stints", task_id=task, names=names):
            stints[row["sub_agent_id"]].append(
                Stint(
                    number=row["number"],
                    started_at=row["started_at"],
                    ended_at=row["ended_at"],
                    status=row["status"] or "",
                    seconds=row["seconds"],
                )
            )
        details = {
            row["sub_agent_id"]: row
            for row in self._db.fetch_rows("lane_details", task_id=task, names=names)
        }
        return [
            _to_lane(row, details[row["sub_agent_id"]], tuple(stints[row["sub_agent_id"]]))
            for row in rows
        ]


def _to_lane(row: sqlite3.Row, details: sqlite3.Row, stints: tuple[Stint, ...]) -> Lane:
    return Lane(
        id=SubagentId(row["sub_agent_id"]),
        step_idx=row["step_idx"],
        title=row["title"] or "",
        standing=to_standing(row),
        created_at=row["created_at"],
        ended_at=row["ended_at"],
        settled_at=row["settled_at"] or "",
        stints=stints,
        parent=details["parent"] or "",
        agent=details["models"] or details["agent"] or "",
        answer=details["answer"] or "",
        spending=Spending(
            input_tokens=details["input_tokens"] or 0,
            output_tokens=details["output_tokens"] or 0,
            cost=details["estimated_cost"] or 0.0,
        ),
    )


def _to_paid(row: sqlite3.Row) -> Paid:
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
