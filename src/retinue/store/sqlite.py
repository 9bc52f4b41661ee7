"""The store: every write is events, and the rows follow them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

from retinue.domain import event as events
from retinue.domain.contract import Contract
from retinue.domain.errors import BadInput, LimitExceeded, Refused
from retinue.domain.event import Event, Recorded
from retinue.domain.ids import SubagentId, TaskId
from retinue.domain.lifecycle import fold
from retinue.domain.subagent import Draft, Subagent, Task
from retinue.ports import Admission, Facts
from retinue.store.database import Database
from retinue.store.records import SqliteRecords
from retinue.store.rows import event_values, standing_values, subagent_of
from retinue.wire.contract import contract_sha256, contract_to_text
from retinue.wire.result import result_to_text

NO_FACTS = Facts()


class SqliteStore:
    """Implements `Store`. The clock only decorates: nothing is decided by it."""

    def __init__(self, database: Database, records: SqliteRecords, now: Callable[[], str]) -> None:
        self._db = database
        self._records = records
        self._now = now

    def create_task(self, task: Task, event: Event) -> list[Recorded]:
        with self._db.transaction(durable=True):
            if self._db.one("task", task_id=task.id) is not None:
                raise BadInput(f"task {task.id} exists already", code="duplicate_id")
            self._db.run(
                "insert_task",
                task_id=task.id,
                title=task.title,
                description=task.description,
                at=task.created_at,
            )
            self._db.run("insert_run", run_id=task.run, task_id=task.id, at=task.created_at)
            started = Event(type=events.RUN_STARTED, summary=f"run {task.run} started")
            return self._append(task, [event, started], NO_FACTS)

    def admit(self, task: TaskId, admission: Admission) -> tuple[list[Subagent], list[Recorded]]:
        with self._db.transaction(durable=True):
            known = self._records.task(task)
            if admission.key:
                again = self._same_request(known, admission)
                if again is not None:
                    return again, []
            if known.state != "open":
                raise Refused(f"task {known.id} is closed", code="task_closed")
            self._require_room(known, admission)
            drafted = self._bind(known, admission.drafts)
            created = [_created(draft.id, draft.contract, admission.by) for draft in drafted]
            recorded = self._append(known, created, NO_FACTS)
            if admission.key:
                self._db.run(
                    "insert_key",
                    task_id=known.id,
                    key=admission.key,
                    request_sha256=admission.request_sha256,
                    sub_agent_ids=json.dumps([draft.id for draft in drafted]),
                )
            return [self._records.subagent(known.id, str(d.id)) for d in drafted], recorded

    def record(
        self, task: TaskId, events: Sequence[Event], facts: Facts = NO_FACTS
    ) -> list[Recorded]:
        with self._db.transaction(durable=True):
            return self._append(self._records.task(task), events, facts)

    def deliver(self, task: TaskId, consumer: str, *, peek: bool = False) -> Subagent | None:
        row = self._db.one("next_settled", task_id=task, consumer=consumer)
        if row is None:
            return None
        settled = subagent_of(row)
        if not peek:
            with self._db.transaction(durable=False):
                self._db.run(
                    "insert_delivery",
                    task_id=task,
                    consumer=consumer,
                    settled_seq=settled.standing.settled_seq,
                    sub_agent_id=settled.id,
                    in_order=1,
                )
        return settled

    def undeliver(self, subagent: Subagent, consumer: str) -> None:
        where = {
            "task_id": subagent.task,
            "consumer": consumer,
            "settled_seq": subagent.standing.settled_seq,
        }
        with self._db.transaction(durable=False):
            self._db.run("delete_delivery", **where)
            self._db.run("reopen_deliveries", **where)

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

    def _require_room(self, task: Task, admission: Admission) -> None:
        if admission.queue:
            return
        row = self._db.one("slots_held", task_id=task.id)
        active = row[0] if row else 0
        if active + len(admission.drafts) > admission.limit:
            raise LimitExceeded(
                f"concurrency limit exceeded: active={active}, limit={admission.limit}",
                hint="wait-any or cancel one first, or spawn with --queue",
            )

    def _bind(self, task: Task, drafts: Sequence[Draft]) -> list[Draft]:
        """Drafts with their final ids and steps, each with its row."""
        bound: list[Draft] = []
        for step_idx, draft in enumerate(drafts, start=task.next_step):
            name = draft.id or self._free_id(task, step_idx)
            if self._db.one("subagent", task_id=task.id, sub_agent_id=name) is not None:
                raise BadInput(
                    f"duplicate id: {name} exists in task {task.id}",
                    code="duplicate_id",
                    hint="ids are never reused and case does not count; choose another",
                )
            parent = replace(draft.contract.parent, step_idx=step_idx)
            contract = replace(draft.contract, parent=parent)
            text = contract_to_text(contract)
            self._db.run(
                "insert_subagent",
                task_id=task.id,
                sub_agent_id=name,
                run_id=task.run,
                step_idx=step_idx,
                context_json=text,
                contract_sha256=contract_sha256(text),
                at=self._now(),
            )
            bound.append(Draft(id=name, contract=contract))
        self._db.run("bump_run", run_id=task.run, next_step=task.next_step + len(bound))
        return bound

    def _free_id(self, task: Task, step_idx: int) -> SubagentId:
        for number in count(step_idx + 1):
            name = f"subagent-{number}"
            if self._db.one("subagent", task_id=task.id, sub_agent_id=name) is None:
                return SubagentId(name)
        raise AssertionError("count() does not end")

    def _append(self, task: Task, new: Sequence[Event], facts: Facts) -> list[Recorded]:
        """Events appended, rows moved: the only place that does either."""
        at = self._now()
        recorded: list[Recorded] = []
        touched: dict[SubagentId, Subagent] = {}
        for seq, event in enumerate(new, start=task.last_seq + 1):
            subagent = None
            if event.subagent is not None:
                known = touched.get(event.subagent)
                subagent = known or self._records.subagent(task.id, event.subagent)
                standing = fold(subagent.standing, event, seq)
                subagent = _timed(replace(subagent, standing=standing), event, at)
                touched[event.subagent] = subagent
            entry = Recorded(
                seq=seq,
                ts=at,
                task=task.id,
                run=task.run,
                step_idx=subagent.step_idx if subagent else None,
                contract_sha256=subagent.contract_sha256 if subagent else None,
                event=event,
            )
            self._db.run("insert_event", **event_values(entry))
            self._follow(task, event, at)
            recorded.append(entry)
        for subagent in touched.values():
            self._write_standing(subagent)
            self._write_facts(subagent, facts, at)
        self._db.run("bump_task", task_id=task.id, last_seq=task.last_seq + len(recorded), at=at)
        return recorded

    def _follow(self, task: Task, event: Event, at: str) -> None:
        """What task-level events change."""
        if event.type == events.TASK_CLOSED:
            self._db.run("close_task", task_id=task.id)
        elif event.type == events.RUN_ENDED:
            outcome = event.payload["outcome"]
            self._db.run("end_run", run_id=task.run, outcome=outcome, at=at)

    def _write_standing(self, subagent: Subagent) -> None:
        self._db.run(
            "update_standing",
            task_id=subagent.task,
            sub_agent_id=subagent.id,
            started_at=subagent.started_at,
            ended_at=subagent.ended_at,
            **standing_values(subagent.standing),
        )

    def _write_facts(self, subagent: Subagent, facts: Facts, at: str) -> None:
        whose = {"task_id": subagent.task, "sub_agent_id": subagent.id}
        if (started := facts.attempt) is not None:
            self._db.run(
                "insert_attempt",
                **whose,
                number=started.number,
                boot_id=started.boot_id,
                pid=started.pid,
                start_ticks=started.start_ticks,
                started_at=at,
                started_monotonic_ms=started.started_monotonic_ms,
            )
        if facts.ended_result is not None:
            text = result_to_text(facts.ended_result)
            self._db.run(
                "end_attempt", **whose, number=facts.ended_attempt, ended_at=at, result_json=text
            )
        if facts.result is not None:
            usage = facts.result.token_usage
            self._db.run(
                "put_result",
                **whose,
                result_json=result_to_text(facts.result),
                status=facts.result.status.value,
                input_tokens=usage.input_tokens or 0,
                output_tokens=usage.output_tokens or 0,
                estimated_cost=usage.estimated_cost or 0.0,
            )
        if facts.questions:
            gate = f"{subagent.id}-{subagent.standing.attempt}"
            self._db.run(
                "insert_gate", **whose, gate_id=gate, questions=json.dumps(facts.questions)
            )
        self._answer_gate(subagent, facts)

    def _answer_gate(self, subagent: Subagent, facts: Facts) -> None:
        if facts.answer:
            self._db.run(
                "answer_gate",
                task_id=subagent.task,
                gate_id=f"{subagent.id}-{subagent.standing.attempt}",
                state="approved",
                answer=facts.answer,
            )


def _created(name: SubagentId | None, contract: Contract, by: str) -> Event:
    return Event(
        type=events.SUBAGENT_CREATED,
        subagent=name,
        by=by,
        summary=events.shorten(f"{name} created: {contract.step.title}"),
        payload={
            "agent": contract.agent,
            "title": contract.step.title,
            "attempt_timeout_ms": contract.execution.attempt_timeout_ms,
        },
    )


def _timed(subagent: Subagent, event: Event, at: str) -> Subagent:
    """The subagent with the moment of its own that this event marks."""
    if event.type == events.SUBAGENT_STARTED:
        return replace(subagent, started_at=at)
    if event.type in (events.SUBAGENT_WAITING, events.SUBAGENT_FAILED, events.BLOCKED):
        return replace(subagent, ended_at=at)
    if event.type == events.STARTED:
        return replace(subagent, ended_at="")
    return subagent
