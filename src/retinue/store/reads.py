"""Read access to the store: rows as domain values, and paged queries for people.

The cost of a page does not grow with the age of a task.
"""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from retinue.core.budget import Spending
from retinue.core.contract import Contract
from retinue.core.data_structures import BoundedDict
from retinue.core.errors import AGENT, PYTHON, NotFound, StorageFailed
from retinue.core.events import BilledRequest, Event, EventFilter, EventMatches, Recorded
from retinue.core.ids import RunId, SubagentId, TaskId
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
from retinue.core.timeline import Lane, Stint
from retinue.formats.contract_json import contract_from_text
from retinue.formats.json_text import to_text
from retinue.formats.result_json import result_from_text
from retinue.store.database import Database


def to_task(row: sqlite3.Row) -> Task:
    return Task(
        id=TaskId(row["task_id"]),
        run=RunId(row["run_id"]),
        title=row["title"],
        description=row["description"],
        state=row["state"],
        outcome=row["outcome"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        last_seq=row["last_seq"],
        next_step=row["next_step"],
    )


def to_subagent(row: sqlite3.Row, contract: Contract | None = None) -> Subagent:
    """Convert a row; pass its `contract` if known, since parsing it is most of the work."""
    return Subagent(
        id=SubagentId(row["sub_agent_id"]),
        task=TaskId(row["task_id"]),
        run=RunId(row["run_id"]),
        step_idx=row["step_idx"],
        contract=contract or contract_from_text(row["context_json"]),
        contract_text=row["context_json"],
        contract_sha256=row["contract_sha256"],
        standing=to_standing(row),
        created_at=row["created_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
    )


def to_standing(row: sqlite3.Row) -> Standing:
    return Standing(
        state=State(row["state"]),
        attempt=row["attempt"],
        in_attempt=bool(row["in_attempt"]),
        tries=row["tries"],
        blocked=bool(row["blocked"]),
        cancel_by=row["cancel_by"],
        cancel_reason=row["cancel_reason"],
        cancelled=bool(row["cancelled"]),
        settled_seq=row["settled_seq"],
        final_status=row["final_status"],
        close_reason=row["close_reason"],
        node_losses=_get_added(row, "node_losses", 0),
    )


def from_standing(standing: Standing) -> dict[str, Any]:
    return vars(standing) | {"state": standing.state.value}


def _get_added(row: sqlite3.Row, column: str, default: Any) -> Any:
    """Return a column that older schemas lack: an untrusted database is read as it is."""
    try:
        return row[column]
    except IndexError:
        return default


def to_attempt(row: sqlite3.Row) -> Attempt:
    return Attempt(
        number=row["number"],
        boot_id=row["boot_id"],
        pid=row["pid"],
        start_ticks=row["start_ticks"],
        place=_get_added(row, "place", ""),
        started_at=row["started_at"],
        started_monotonic_ms=row["started_monotonic_ms"],
        ended_at=row["ended_at"],
        result=result_from_text(row["result_json"]) if row["result_json"] else None,
    )


def to_gate(row: sqlite3.Row) -> Gate:
    return Gate(
        id=row["gate_id"],
        subagent=SubagentId(row["sub_agent_id"]),
        state=row["state"],
        questions=tuple(json.loads(row["questions"])),
        answer=row["answer"],
    )


def to_billed_request(row: sqlite3.Row) -> BilledRequest:
    return BilledRequest(
        entry=row["entry_id"],
        task=TaskId(row["task_id"]),
        subagent=SubagentId(row["sub_agent_id"]),
        ts=row["ts"],
        attempt=row["attempt"],
        provider=row["provider"],
        model=row["model"],
        status=row["status"],
        spending=Spending(
            input_tokens=row["input_tokens"],
            output_tokens=row["output_tokens"],
            cached_tokens=row["cached_tokens"],
            reasoning_tokens=row["reasoning_tokens"],
            cost=row["cost"] or 0.0,
            estimated=bool(row["estimated"]),
        ),
        priced=row["cost"] is not None,
        seconds=_get_added(row, "seconds", None),
    )


def to_recorded(row: sqlite3.Row) -> Recorded:
    instance = row["sub_agent_id"]
    return Recorded(
        seq=row["seq"],
        ts=row["ts"],
        task=TaskId(row["task_id"]),
        run=RunId(row["run_id"]),
        step_idx=row["step_idx"],
        contract_sha256=row["contract_sha256"],
        event=Event(
            type=row["type"],
            summary=row["summary"],
            by=row["by"],
            subagent=None if instance is None else SubagentId(instance),
            attempt=row["attempt"],
            payload=json.loads(row["payload"]),
        ),
    )


def from_recorded(recorded: Recorded) -> dict[str, Any]:
    event = recorded.event
    return {
        "task_id": recorded.task,
        "seq": recorded.seq,
        "ts": recorded.ts,
        "type": event.type,
        "run_id": recorded.run,
        "sub_agent_id": event.subagent,
        "step_idx": recorded.step_idx,
        "attempt": event.attempt,
        "by": event.by,
        "contract_sha256": recorded.contract_sha256,
        "summary": event.summary,
        "payload": to_text(dict(event.payload)),
    }


MOST_RECENT = 256
EVENTS_AT_ONCE = 1000  # one page of `iter_events`
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


class Records:
    """Reading side of the database. A lookup by id raises NotFound if there is no such row."""

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
                hint=f"'retinue subagent list {task}' shows the ids",
                hints={
                    AGENT: "list_subagents shows the ids",
                    PYTHON: "Task.subagents() lists the ids",
                },
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

    def iter_events(self, task: TaskId, *, after: int = 0) -> Iterator[Recorded]:
        """Yield all events of a task after that number; they are read a page at a time."""
        while page := self.list_events(task, after=after, limit=EVENTS_AT_ONCE):
            yield from page
            after = page[-1].seq

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


SCANNED = 5000  # events that one search reads, matching or not
GATES = 50
BOOKINGS = 500
MAX_CACHED = 256  # tasks with cached totals or steps
SHORT_SECONDS = 0.02  # a query that takes no longer is run each time
SHARE_OF_TIME = 0.05  # limit for a query that takes longer
LANES = {"all": "lanes", "open": "lanes_open", "failed": "lanes_failed"}


CacheKey = TypeVar("CacheKey")
Value = TypeVar("Value")


class SlowQueryCache(Generic[CacheKey, Value]):
    """Results of queries that grow with the history.

    A short query is run each time. A long one is run only so often that it takes a small share of
    the time, however often a page asks.
    """

    def __init__(self, most: int) -> None:
        self._known = BoundedDict[CacheKey, tuple[Value, float]](most)  # and until when to use it

    def get(self, key: CacheKey, compute: Callable[[], Value], *, is_final: bool = False) -> Value:
        """Return the cached result, or the computed one; a final one never changes."""
        known = self._known.get(key)
        if known is not None and time.monotonic() < known[1]:
            return known[0]
        began = time.monotonic()
        value = compute()
        took = time.monotonic() - began
        until = began + took / SHARE_OF_TIME if took > SHORT_SECONDS else began
        self._known[key] = value, math.inf if is_final else until
        return value


class PageQueries:
    def __init__(self, database: Database, records: Records) -> None:
        self._db = database
        self._records = records
        self._totals = SlowQueryCache[TaskId, Totals](MAX_CACHED)
        # The newest event that was read for plans, and the names of their steps by position.
        self._planned = BoundedDict[TaskId, tuple[int, dict[int, str]]](MAX_CACHED)

    def get_totals(self, task: Task) -> Totals:
        """Return the totals of a task; those of a closed one are computed once."""
        is_closed = task.state == "closed"
        compute = partial(self._records.sum_totals, task.id)
        return self._totals.get(task.id, compute, is_final=is_closed)

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

    def list_plans(self, task: Task) -> list[dict[str, Any]]:
        """Return the recorded plans of a task, each with the `standings` of its started steps."""
        found: list[dict[str, Any]] = []
        rows = self._db.fetch_rows("plans_of_task", task_id=task.id, after=0, last=task.last_seq)
        for payload in (json.loads(row["payload"]) for row in rows):
            # An order to join the output of one subagent names no plan.
            if "plan" not in payload:
                continue
            order = [str(name) for name in payload["order"]]
            started = self._db.fetch_rows(
                "standings_by_name", task_id=task.id, names=json.dumps(order)
            )
            standings = {row["sub_agent_id"]: to_standing(row).status for row in started}
            found.append(payload | {"order": order, "standings": standings})
        return found

    def get_lane(self, task: TaskId, subagent: SubagentId) -> Lane:
        rows = self._db.fetch_rows("lane", task_id=task, sub_agent_id=subagent)
        return self._build_lanes(task, rows)[0]

    def get_event(self, task: TaskId, seq: int) -> Recorded | None:
        row = self._db.fetch_one("event", task_id=task, seq=seq)
        return None if row is None else to_recorded(row)

    def search(self, task: TaskId, wanted: EventFilter, *, before: int, limit: int) -> EventMatches:
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
        return EventMatches(
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

    def list_model_requests(self, task: TaskId, subagent: SubagentId) -> list[BilledRequest]:
        """Return the newest model requests, in the order in which they ended."""
        rows = self._db.fetch_rows(
            "newest_bookings", task_id=task, sub_agent_id=subagent, limit=BOOKINGS
        )
        # Entries are numbered when a request begins, and have the time of its end.
        return sorted(
            (to_billed_request(row) for row in reversed(rows)), key=lambda request: request.ts
        )

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
                    node=row["place"].partition("/")[0],
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
        error=details["error"] or "",
        unpriced=bool(details["unpriced"]),
        spending=Spending(
            input_tokens=details["input_tokens"] or 0,
            output_tokens=details["output_tokens"] or 0,
            cost=details["estimated_cost"] or 0.0,
        ),
    )
