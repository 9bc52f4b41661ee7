"""The SQLite store: every write appends events, and rows are updated with them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count

from retinue.core import events
from retinue.core.contract import Contract
from retinue.core.data_structures import BoundedDict, replace_fields
from retinue.core.errors import AGENT, PYTHON, BadInput, LimitExceeded, Refused, StorageFailed
from retinue.core.events import Event, Recorded
from retinue.core.ids import SubagentId, TaskId
from retinue.core.lifecycle import Standing
from retinue.core.safe_text import shorten
from retinue.core.subagent import Draft, Subagent, Task, task_closed
from retinue.formats.contract_json import contract_to_text, hash_contract
from retinue.ports import Admission, EventFacts, Outcome, Writing
from retinue.store.database import Database
from retinue.store.event_writer import EventWriter, attach_results
from retinue.store.reads import Records, to_subagent

MOST_TASKS = 256


class Slots:
    """Number of slots in use per task, kept in memory.

    A row contains a whole contract: counting a thousand rows at each spawn would read megabytes.
    """

    def __init__(self, database: Database) -> None:
        self._db = database
        self._holders = BoundedDict[TaskId, set[SubagentId]](MOST_TASKS)

    def count_held(self, task: TaskId) -> int:
        """Return the number of slots in use, as of before the current transaction."""
        holders = self._holders.get(task)
        if holders is None:
            rows = self._db.fetch_rows("slot_holders", task_id=task)
            holders = self._holders[task] = {SubagentId(name) for (name,) in rows}
        return len(holders)

    def follow(self, task: TaskId, moved: Iterable[Subagent]) -> None:
        """Apply committed moves of subagents."""
        if (holders := self._holders.get(task)) is None:
            return
        for each in moved:
            if each.takes_slot:
                holders.add(each.id)
            else:
                holders.discard(each.id)


NO_FACTS = EventFacts()
CONTRACT_LIMIT = 64 * 1024  # characters of a contract that its event contains
OF_PARENT = "\x1f"  # separator around the parent's id in a stored key


class SqliteStore:
    """Implements `Store`. Times are only recorded: no decision depends on the clock."""

    def __init__(self, database: Database, records: Records, now: Callable[[], str]) -> None:
        self._db = database
        self._records = records
        self._writer = EventWriter(database, records)
        self._slots = Slots(database)
        self._now = now

    def create_task(self, task: Task, event: Event) -> list[Recorded]:
        with self._db.transaction(durable=True):
            if self._db.fetch_one("task", task_id=task.id) is not None:
                raise BadInput(f"task {task.id} exists already", code="duplicate_id")
            self._writer.open_task(task)
            described = {"title": task.title, "description": task.description}
            created = replace_fields(event, payload={**event.payload, **described})
            started = Event(type=events.RUN_STARTED, summary=f"run {task.run} started")
            done = self._writer.append(task, [created, started], NO_FACTS, task.created_at)
        self._remember(task.id, None, ())
        return done.recorded

    def admit(self, task: TaskId, admission: Admission) -> tuple[list[Subagent], list[Recorded]]:
        with self._db.transaction(durable=True):
            known = self._records.get_task(task)
            if admission.key:
                again = self._find_repeated(known, admission)
                if again is not None:
                    return again, []
            # Before the checks below: a repeated call succeeds even in a closed or full task.
            there = self._find_existing(known, admission)
            new = tuple(draft for draft in admission.drafts if draft.id not in there)
            if not new:
                return [there[draft.id] for draft in admission.drafts], []
            if known.state != "open":
                raise task_closed(known.id)
            if refusal := next(filter(None, (draft.refusal for draft in new)), None):
                raise refusal
            # Counted and inserted in one transaction: concurrent calls cannot exceed the limit.
            room = self._count_room(known, admission, len(new))
            at = self._now()
            inserted = self._insert_drafts(known, new, at)
            created = [*admission.preface, *_make_admission_events(inserted, admission.by, room)]
            done = self._writer.append(
                known, created, NO_FACTS, at, {each.id: each for each in inserted}
            )
            names = iter([each.id for each in inserted])
            every = [draft.id if draft.id in there else next(names) for draft in admission.drafts]
            if admission.key:
                self._db.run(
                    "insert_key",
                    task_id=known.id,
                    key=_make_stored_key(admission),
                    request_sha256=admission.request_sha256,
                    sub_agent_ids=json.dumps(every),
                )
        self._remember(known.id, done.task, done.moved.values())
        return [self._records.get_subagent(known.id, str(name)) for name in every], done.recorded

    def record(
        self, task: TaskId, events: Sequence[Event], facts: EventFacts = NO_FACTS
    ) -> list[Recorded]:
        with self._db.transaction(durable=True):
            known = self._records.get_task(task)
            new = attach_results(events, facts)
            done = self._writer.append(known, new, facts, self._now())
        self._remember(known.id, done.task, done.moved.values())
        return done.recorded

    def record_all(self, writings: Sequence[Writing]) -> list[Outcome]:
        # The common case needs no bookkeeping.
        if len(writings) == 1:
            try:
                return [self.record(*writings[0])]
            except (Refused, StorageFailed) as error:
                return [error]
        moved: dict[TaskId, dict[SubagentId, Subagent]] = {}
        tasks: dict[TaskId, Task | None] = {}  # as of this transaction, not committed yet
        outcomes: list[Outcome] = []
        try:
            with self._db.transaction(durable=True):
                # Group commit: one fsync for all. A refused writing does not affect the others.
                for task, events, facts in writings:
                    new = attach_results(events, facts)
                    known = tasks.get(task) or self._records.get_task(task, fresh=bool(tasks))
                    standing = moved.setdefault(known.id, {})
                    try:
                        done = self._writer.append(known, new, facts, self._now(), standing)
                    except Refused as refusal:
                        outcomes.append(refusal)
                        continue
                    outcomes.append(done.recorded)
                    standing |= done.moved
                    tasks[known.id] = done.task
        except StorageFailed as failure:
            # The commit failed, so none of the writings was stored.
            return [failure] * len(writings)
        for task, last in tasks.items():
            self._remember(task, last, moved[task].values())
        return outcomes

    def deliver(
        self, task: TaskId, consumer: str, *, peek: bool = False, held: Collection[str] = ()
    ) -> Subagent | None:
        hidden = json.dumps(list(held))
        row = self._db.fetch_one("next_settled", task_id=task, consumer=consumer, held=hidden)
        if row is None:
            return None
        settled = self._records.get_subagent(task, row["sub_agent_id"])
        if not peek:
            self._note_delivery(settled, consumer, in_order=not held)
        return settled

    def mark_delivered(self, subagent: Subagent, consumer: str) -> bool:
        return self._note_delivery(subagent, consumer, in_order=False)

    def _note_delivery(self, subagent: Subagent, consumer: str, *, in_order: bool) -> bool:
        """Record that a consumer received a result; return whether that is new."""
        with self._db.transaction(durable=False):
            new = self._db.run(
                "insert_delivery",
                task_id=subagent.task,
                consumer=consumer,
                settled_seq=subagent.standing.settled_seq,
                sub_agent_id=subagent.id,
                in_order=int(in_order),
            )
        return new == 1

    def revoke_delivery(self, subagent: Subagent, consumer: str) -> None:
        where = {
            "task_id": subagent.task,
            "consumer": consumer,
            "settled_seq": subagent.standing.settled_seq,
        }
        with self._db.transaction(durable=False):
            self._db.run("delete_delivery", **where)
            self._db.run("reopen_deliveries", **where)

    def is_busy(self, task: TaskId) -> bool:
        return self._db.fetch_one("one_unsettled", task_id=task) is not None

    def _remember(self, task: TaskId, last: Task | None, moved: Collection[Subagent]) -> None:
        """Update the caches after a commit; without `last` the task is read again."""
        self._slots.follow(task, moved)
        known = last or self._records.get_task(task, fresh=True)
        self._records.recent.keep(known, moved)

    def _find_repeated(self, task: Task, admission: Admission) -> list[Subagent] | None:
        """Return the subagents that the same parent started with this key; None without any.

        Raises:
            BadInput: the key was used for another request.
        """
        row = self._db.fetch_one("key", task_id=task.id, key=_make_stored_key(admission))
        # Earlier versions stored the keys of all parents without a prefix.
        if row is None and admission.parent:
            row = self._db.fetch_one("key", task_id=task.id, key=admission.key)
            if row is not None and _find_starter(self._list_by_key(task, row)) != admission.parent:
                row = None
        if row is None:
            return None
        found = self._list_by_key(task, row)
        known = (admission.request_sha256, admission.briefs_sha256)
        if row["request_sha256"] not in known or _find_starter(found) != admission.parent:
            raise BadInput(
                f"key {admission.key!a} was used for another request",
                code="key_conflict",
                hint="repeat the same request from the same folder, or use another key",
            )
        return found

    def _list_by_key(self, task: Task, row: sqlite3.Row) -> list[Subagent]:
        return [
            self._records.get_subagent(task.id, name) for name in json.loads(row["sub_agent_ids"])
        ]

    def _find_existing(self, task: Task, admission: Admission) -> dict[SubagentId | None, Subagent]:
        """Return the subagents of a repeated call that exist already, by id.

        Raises:
            BadInput: one of them has other work, or another parent.
        """
        found: dict[SubagentId | None, Subagent] = {}
        for draft in admission.drafts if admission.again else ():
            row = self._db.fetch_one("subagent", task_id=task.id, sub_agent_id=draft.id)
            if row is None:
                continue
            known = to_subagent(row)
            if _get_identity(known.contract) != _get_identity(draft.contract):
                if task.state != "open":
                    continue  # a closed task refuses all new work with its own error
                raise BadInput(
                    f"duplicate id: {known.id} exists in task {task.id}, with other work or of "
                    "another parent",
                    code="duplicate_id",
                    hint="choose another id, or 'subagent continue' gives it more to do",
                    hints={AGENT: "choose another id, or continue_subagent to give it more to do"},
                )
            found[draft.id] = known
        return found

    def _count_room(self, task: Task, admission: Admission, number: int) -> int:
        """Return how many of the new subagents can start at once.

        Raises:
            LimitExceeded: not all of them can, and the call does not queue.
        """
        if admission.queue:
            self._require_few_waiting(task, admission, number)
            # Bounded by the limit, however many subagents wait.
            rows = self._db.fetch_rows("first_open", task_id=task.id, limit=admission.limit)
            return max(0, admission.limit - len(rows))
        active = self._slots.count_held(task.id)
        if active + number > admission.limit:
            raise LimitExceeded.of(
                active=active,
                limit=admission.limit,
                asked=number,
                hint="wait until one ends, or cancel one; 'spawn --queue' waits",
                hints={
                    AGENT: "wait until one ends, or cancel one",
                    PYTHON: "wait until one ends, or cancel one; queue=True waits",
                },
            )
        return number

    def _require_few_waiting(self, task: Task, admission: Admission, number: int) -> None:
        """Require that the parent stays within its limit of waiting subagents.

        Raises:
            LimitExceeded: it would not.
        """
        if admission.max_waiting is None:
            return
        (row,) = self._db.fetch_rows("count_waiting", task_id=task.id, parent=admission.parent)
        if row["waiting"] + number > admission.max_waiting:
            raise LimitExceeded(
                f"{admission.parent} has {row['waiting']} subagents waiting for a slot; "
                f"{number} more would exceed its limit of {admission.max_waiting}",
                code="too_many_waiting",
                hint="wait until some have started, or cancel some",
            )

    def _insert_drafts(self, task: Task, drafts: Sequence[Draft], at: str) -> list[Subagent]:
        """Insert the drafts as subagents, each with its final id and step.

        Raises:
            BadInput: an id is taken.
        """
        inserted: list[Subagent] = []
        for number, draft in enumerate(drafts, start=task.next_step):
            step_idx = number if draft.step_idx is None else draft.step_idx
            name = draft.id or self._free_id(task, step_idx)
            if draft.id and self._is_taken(task, name):
                raise BadInput(
                    f"duplicate id: {name} exists in task {task.id}",
                    code="duplicate_id",
                    hint="ids are never reused and case does not count; choose another",
                )
            parent = replace_fields(draft.contract.parent, step_idx=step_idx)
            contract = replace_fields(draft.contract, parent=parent)
            text = contract_to_text(contract)
            subagent = Subagent(
                id=name,
                task=task.id,
                run=task.run,
                step_idx=step_idx,
                contract=contract,
                contract_text=text,
                contract_sha256=hash_contract(text),
                standing=Standing(),
                created_at=at,
            )
            self._writer.insert_subagent(subagent)
            inserted.append(subagent)
        return inserted

    def _free_id(self, task: Task, step_idx: int) -> SubagentId:
        for number in count(step_idx + 1):
            name = f"subagent-{number}"
            if not self._is_taken(task, name):
                return SubagentId(name)
        raise AssertionError("count() does not end")

    def _is_taken(self, task: Task, name: str) -> bool:
        return self._db.fetch_one("subagent", task_id=task.id, sub_agent_id=name) is not None


def _make_admission_events(inserted: Sequence[Subagent], by: str, room: int) -> Iterator[Event]:
    """Yield the events of new subagents, with their contracts."""
    for number, each in enumerate(inserted):
        # A very large contract is only in contract.json. A subagent that has to wait has no folder
        # yet, so its event contains the contract in any case.
        has_copy = len(each.contract_text) <= CONTRACT_LIMIT or number >= room
        copy = {"context_json": each.contract_text} if has_copy else {}
        yield _make_created_event(each, by, copy)
        if each.contract.boundary.network == "on":
            summary = f"{each.id} may use the network"
            yield Event(type=events.NETWORK_GRANTED, subagent=each.id, by=by, summary=summary)


def _make_created_event(subagent: Subagent, by: str, kept: Mapping[str, str]) -> Event:
    contract = subagent.contract
    return Event(
        type=events.SUBAGENT_CREATED,
        subagent=subagent.id,
        by=by,
        summary=shorten(f"{subagent.id} created: {contract.step.title}"),
        payload={
            "agent": contract.agent,
            "title": contract.step.title,
            "attempt_timeout_ms": contract.execution.attempt_timeout_ms,
            **kept,
        },
    )


def _make_stored_key(admission: Admission) -> str:
    """Return the key as stored: each parent has its own keys, and so has the user.

    No id contains the separator, so keys of different parents never collide.
    """
    if admission.parent:
        return f"{OF_PARENT}{admission.parent}{OF_PARENT}{admission.key}"
    return f"{OF_PARENT * 2}{admission.key}" if OF_PARENT in admission.key else admission.key


def _find_starter(subagents: Sequence[Subagent]) -> str:
    """Return the subagent that delegated these; empty for the user."""
    return subagents[0].contract.delegated_by if subagents else ""


def _get_identity(contract: Contract) -> tuple[object, ...]:
    """Return what is asked for and by whom; a repeated call with the same is the same subagent."""
    return contract.step, contract.context, contract.delegated_by, contract.sent_by
