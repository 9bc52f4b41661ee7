"""The store: every write is events, and the rows follow them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import count

from retinue.domain import event as events
from retinue.domain.changing import changed
from retinue.domain.contract import Contract
from retinue.domain.errors import BadInput, LimitExceeded, Refused, StorageFailed
from retinue.domain.event import Event, Recorded
from retinue.domain.ids import SubagentId, TaskId
from retinue.domain.lifecycle import Standing
from retinue.domain.subagent import Draft, Subagent, Task
from retinue.ports import Admission, Facts, Outcome, Writing
from retinue.store.appending import Appender
from retinue.store.database import Database
from retinue.store.records import SqliteRecords
from retinue.store.rows import subagent_of
from retinue.store.slots import Slots
from retinue.wire.contract import contract_sha256, contract_to_text

NO_FACTS = Facts()


class SqliteStore:
    """Implements `Store`. The clock only decorates: nothing is decided by it."""

    def __init__(self, database: Database, records: SqliteRecords, now: Callable[[], str]) -> None:
        self._db = database
        self._records = records
        self._appender = Appender(database, records)
        self._slots = Slots(database)
        self._now = now

    def create_task(self, task: Task, event: Event) -> list[Recorded]:
        with self._db.transaction(durable=True):
            if self._db.one("task", task_id=task.id) is not None:
                raise BadInput(f"task {task.id} exists already", code="duplicate_id")
            self._appender.open_task(task)
            started = Event(type=events.RUN_STARTED, summary=f"run {task.run} started")
            done = self._appender.append(task, [event, started], NO_FACTS, task.created_at)
        self._remember(task.id, None, ())
        return done.recorded

    def admit(self, task: TaskId, admission: Admission) -> tuple[list[Subagent], list[Recorded]]:
        with self._db.transaction(durable=True):
            known = self._records.task(task)
            if admission.key:
                again = self._same_request(known, admission)
                if again is not None:
                    return again, []
            there = self._already_there(known, admission)
            new = tuple(draft for draft in admission.drafts if draft.id not in there)
            if not new:
                return [there[draft.id] for draft in admission.drafts], []
            if known.state != "open":
                raise Refused(
                    f"task {known.id} is closed",
                    code="task_closed",
                    hint="it takes no more work: spawn anew, in another task",
                )
            if refusal := next(filter(None, (draft.refusal for draft in new)), None):
                raise refusal
            room = self._room(known, admission, len(new))
            at = self._now()
            bound = self._bind(known, new, at)
            created = [*admission.preface, *_admitted(bound, admission.by, room)]
            done = self._appender.append(
                known, created, NO_FACTS, at, {each.id: each for each in bound}
            )
            names = iter([each.id for each in bound])
            every = [draft.id if draft.id in there else next(names) for draft in admission.drafts]
            if admission.key:
                self._db.run(
                    "insert_key",
                    task_id=known.id,
                    key=admission.key,
                    request_sha256=admission.request_sha256,
                    sub_agent_ids=json.dumps(every),
                )
        self._remember(known.id, done.task, done.moved.values())
        return [self._records.subagent(known.id, str(name)) for name in every], done.recorded

    def record(
        self, task: TaskId, events: Sequence[Event], facts: Facts = NO_FACTS
    ) -> list[Recorded]:
        with self._db.transaction(durable=True):
            known = self._records.task(task)
            done = self._appender.append(known, events, facts, self._now())
        self._remember(known.id, done.task, done.moved.values())
        return done.recorded

    def record_all(self, writings: Sequence[Writing]) -> list[Outcome]:
        if len(writings) == 1:  # as it mostly is
            try:
                return [self.record(*writings[0])]
            except (Refused, StorageFailed) as error:
                return [error]
        moved: dict[TaskId, dict[SubagentId, Subagent]] = {}
        tasks: dict[TaskId, Task | None] = {}  # as they stand here, which is not committed yet
        outcomes: list[Outcome] = []
        try:
            with self._db.transaction(durable=True):
                for task, new, facts in writings:
                    known = tasks.get(task) or self._records.task(task, fresh=bool(tasks))
                    standing = moved.setdefault(known.id, {})
                    try:
                        done = self._appender.append(known, new, facts, self._now(), standing)
                    except Refused as refusal:
                        outcomes.append(refusal)
                        continue
                    outcomes.append(done.recorded)
                    standing |= done.moved
                    tasks[known.id] = done.task
        except StorageFailed as failure:
            return [failure] * len(writings)
        for task, last in tasks.items():
            self._remember(task, last, moved[task].values())
        return outcomes

    def deliver(
        self, task: TaskId, consumer: str, *, peek: bool = False, held: Collection[str] = ()
    ) -> Subagent | None:
        hidden = json.dumps(list(held))
        row = self._db.one("next_settled", task_id=task, consumer=consumer, held=hidden)
        if row is None:
            return None
        settled = self._records.subagent(task, row["sub_agent_id"])
        if not peek:
            self._note_delivery(settled, consumer, in_order=not held)
        return settled

    def mark_delivered(self, subagent: Subagent, consumer: str) -> bool:
        return self._note_delivery(subagent, consumer, in_order=False)

    def _note_delivery(self, subagent: Subagent, consumer: str, *, in_order: bool) -> bool:
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

    def undeliver(self, subagent: Subagent, consumer: str) -> None:
        where = {
            "task_id": subagent.task,
            "consumer": consumer,
            "settled_seq": subagent.standing.settled_seq,
        }
        with self._db.transaction(durable=False):
            self._db.run("delete_delivery", **where)
            self._db.run("reopen_deliveries", **where)

    def is_busy(self, task: TaskId) -> bool:
        return self._db.one("one_unsettled", task_id=task) is not None

    def _remember(self, task: TaskId, last: Task | None, moved: Collection[Subagent]) -> None:
        """This is committed. Without its last value, the task is read again."""
        self._slots.follow(task, moved)
        known = last or self._records.task(task, fresh=True)
        self._records.recent.keep(known, moved)

    def _same_request(self, task: Task, admission: Admission) -> list[Subagent] | None:
        row = self._db.one("key", task_id=task.id, key=admission.key)
        if row is None:
            return None
        if row["request_sha256"] != admission.request_sha256:
            raise BadInput(
                f"key {admission.key!a} was used for another request",
                code="key_conflict",
                hint="repeat the same request, or take another key",
            )
        return [self._records.subagent(task.id, name) for name in json.loads(row["sub_agent_ids"])]

    def _already_there(self, task: Task, admission: Admission) -> dict[SubagentId | None, Subagent]:
        """Those of a repeated call that exist, by the ids it gives them.

        Raises:
            BadInput: one of them has other work, or is somebody else's.
        """
        found: dict[SubagentId | None, Subagent] = {}
        for draft in admission.drafts if admission.again else ():
            row = self._db.one("subagent", task_id=task.id, sub_agent_id=draft.id)
            if row is None:
                continue
            known = subagent_of(row)
            if _asked(known.contract) != _asked(draft.contract):
                more = ", or continue_subagent to give it more to do"
                raise BadInput(
                    f"duplicate id: {known.id} exists in task {task.id}, with other work or of "
                    "another parent",
                    code="duplicate_id",
                    hint="choose another id" + (more if task.state == "open" else ""),
                )
            found[draft.id] = known
        return found

    def _room(self, task: Task, admission: Admission, number: int) -> int:
        """How many are sure to start at once; not counted beyond the limit, however many wait.

        Raises:
            LimitExceeded: not all of so many are, and nobody may wait.
        """
        if admission.queue:
            rows = self._db.rows("first_open", task_id=task.id, limit=admission.limit)
            return max(0, admission.limit - len(rows))
        active = self._slots.held(task.id)
        if active + number > admission.limit:
            raise LimitExceeded.of(
                active=active,
                limit=admission.limit,
                asked=number,
                hint="wait until one ends, or cancel one; at a shell 'spawn --queue' waits",
            )
        return number

    def _bind(self, task: Task, drafts: Sequence[Draft], at: str) -> list[Subagent]:
        """What the drafts have become, each with its final id, step and row."""
        bound: list[Subagent] = []
        for number, draft in enumerate(drafts, start=task.next_step):
            step_idx = number if draft.step_idx is None else draft.step_idx
            name = draft.id or self._free_id(task, step_idx)
            if draft.id and self._is_taken(task, name):
                raise BadInput(
                    f"duplicate id: {name} exists in task {task.id}",
                    code="duplicate_id",
                    hint="ids are never reused and case does not count; choose another",
                )
            parent = changed(draft.contract.parent, step_idx=step_idx)
            contract = changed(draft.contract, parent=parent)
            text = contract_to_text(contract)
            subagent = Subagent(
                id=name,
                task=task.id,
                run=task.run,
                step_idx=step_idx,
                contract=contract,
                contract_text=text,
                contract_sha256=contract_sha256(text),
                standing=Standing(),
                created_at=at,
            )
            self._appender.enroll(subagent)
            bound.append(subagent)
        return bound

    def _free_id(self, task: Task, step_idx: int) -> SubagentId:
        for number in count(step_idx + 1):
            name = f"subagent-{number}"
            if not self._is_taken(task, name):
                return SubagentId(name)
        raise AssertionError("count() does not end")

    def _is_taken(self, task: Task, name: str) -> bool:
        return self._db.one("subagent", task_id=task.id, sub_agent_id=name) is not None


def _admitted(bound: Sequence[Subagent], by: str, room: int) -> Iterator[Event]:
    """Whoever has no room yet has no folder either: the log alone keeps its contract."""
    for number, each in enumerate(bound):
        yield _created(each, by, {"context_json": each.contract_text} if number >= room else {})
        if each.contract.boundary.network == "on":
            summary = f"{each.id} may use the network"
            yield Event(type=events.NETWORK_GRANTED, subagent=each.id, by=by, summary=summary)


def _created(subagent: Subagent, by: str, kept: Mapping[str, str]) -> Event:
    contract = subagent.contract
    return Event(
        type=events.SUBAGENT_CREATED,
        subagent=subagent.id,
        by=by,
        summary=events.shorten(f"{subagent.id} created: {contract.step.title}"),
        payload={
            "agent": contract.agent,
            "title": contract.step.title,
            "attempt_timeout_ms": contract.execution.attempt_timeout_ms,
            **kept,
        },
    )


def _asked(contract: Contract) -> tuple[object, ...]:
    """What is asked for, and by whom: the same twice is one subagent."""
    return contract.step, contract.context, contract.delegated_by, contract.sent_by
