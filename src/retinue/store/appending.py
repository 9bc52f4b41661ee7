"""The rows of the database: events are appended, and every other row follows them.

Nothing else inserts or moves a task, a run, a subagent, an attempt or a result,
be it as things happen or from a log that is read again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from retinue.domain import event as events
from retinue.domain.changing import changed
from retinue.domain.event import Event, Recorded
from retinue.domain.ids import SubagentId
from retinue.domain.lifecycle import State, fold
from retinue.domain.subagent import Subagent, Task
from retinue.ports import Facts
from retinue.store.database import Database
from retinue.store.records import SqliteRecords
from retinue.store.rows import event_values, standing_values
from retinue.wire.result import result_to_text

NOBODY: Mapping[SubagentId, Subagent] = {}


class Appended(NamedTuple):
    """What was written, and where that has led."""

    recorded: list[Recorded]
    moved: dict[SubagentId, Subagent]  # as they stand now
    task: Task | None  # likewise; None: it has to be read


class Appender:
    """To be used within a transaction of the caller's."""

    def __init__(self, database: Database, records: SqliteRecords) -> None:
        self._db = database
        self._records = records

    def open_task(self, task: Task) -> None:
        """The task has its row, and one for its run."""
        self._db.run(
            "insert_task",
            task_id=task.id,
            title=task.title,
            description=task.description,
            at=task.created_at,
        )
        self._db.run("insert_run", run_id=task.run, task_id=task.id, at=task.created_at)

    def enroll(self, subagent: Subagent) -> None:
        """The subagent is `created`."""
        self._db.run(
            "insert_subagent",
            task_id=subagent.task,
            sub_agent_id=subagent.id,
            run_id=subagent.run,
            step_idx=subagent.step_idx,
            context_json=subagent.contract_text,
            contract_sha256=subagent.contract_sha256,
            at=subagent.created_at,
        )
        self._db.run("bump_run", run_id=subagent.run, next_step=subagent.step_idx + 1)

    def append(
        self,
        task: Task,
        new: Sequence[Event],
        facts: Facts,
        at: str,
        known: Mapping[SubagentId, Subagent] = NOBODY,
    ) -> Appended:
        """The events are the task's newest, and rows have moved with them.

        Args:
            known: where subagents stand in this transaction, so that they need not be read.

        Raises:
            IllegalTransition: an event does not fit where its subagent stands; nothing was written.
        """
        recorded: list[Recorded] = []
        moved: dict[SubagentId, Subagent] = {}
        elsewhere: set[SubagentId] = set()  # than where they stood: many events move nobody
        for seq, event in enumerate(new, start=task.last_seq + 1):
            subagent = None
            if (name := event.subagent) is not None:
                before = moved.get(name) or known.get(name)
                before = before or self._records.subagent(task.id, name)
                moved[name] = subagent = _after(before, event, seq, at)
                if subagent is not before:
                    elsewhere.add(name)
            recorded.append(_recorded(task, seq, at, event, subagent))
        # All of them fit: only now is anything written.
        self._db.run_all("insert_event", map(event_values, recorded))
        for subagent in moved.values():
            if subagent.id in elsewhere:
                self._write_standing(subagent)
            self._write_facts(subagent, facts, at)
        last_seq = task.last_seq + len(recorded)
        self._db.run("bump_task", task_id=task.id, last_seq=last_seq, at=at)
        followed = [self._follow(task, event, at) for event in new]
        after = None if any(followed) else changed(task, last_seq=last_seq, updated_at=at)
        return Appended(recorded, moved, after)

    def _follow(self, task: Task, event: Event, at: str) -> bool:
        """What task-level events change has changed; whether this event is one."""
        if event.type == events.TASK_CLOSED:
            self._db.run("close_task", task_id=task.id)
        elif event.type == events.INTEGRATION_ORDER:  # the places of its steps are taken
            reserved = event.payload.get("reserved", 0)
            self._db.run("bump_run", run_id=task.run, next_step=reserved)
        elif event.type == events.RUN_ENDED:
            outcome = event.payload["outcome"]
            self._db.run("end_run", run_id=task.run, outcome=outcome, at=at)
        else:
            return event.type == events.SUBAGENT_CREATED  # which has taken a place, too
        return True

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
        text = ""
        if facts.ended_result is not None:
            text = result_to_text(facts.ended_result)
            self._db.run(
                "end_attempt", **whose, number=facts.ended_attempt, ended_at=at, result_json=text
            )
        if facts.result is not None:
            usage = facts.result.token_usage
            same = facts.result == facts.ended_result
            self._db.run(
                "put_result",
                **whose,
                result_json=text if same else result_to_text(facts.result),
                status=facts.result.status.value,
                input_tokens=usage.input_tokens or 0,
                output_tokens=usage.output_tokens or 0,
                estimated_cost=usage.estimated_cost or 0.0,
            )
        self._write_gate(subagent, facts)

    def _write_gate(self, subagent: Subagent, facts: Facts) -> None:
        where = {"task_id": subagent.task, "gate_id": subagent.gate}
        if facts.questions:
            questions = json.dumps(facts.questions)
            self._db.run("insert_gate", **where, sub_agent_id=subagent.id, questions=questions)
        if facts.answer:
            self._db.run("answer_gate", **where, state="approved", answer=facts.answer)
        elif subagent.standing.state in (State.FAILED, State.CLOSED):  # nobody can answer any more
            self._db.run("answer_gate", **where, state="rejected", answer="")


def _recorded(task: Task, seq: int, at: str, event: Event, subagent: Subagent | None) -> Recorded:
    return Recorded(
        seq=seq,
        ts=at,
        task=task.id,
        run=task.run,
        step_idx=subagent.step_idx if subagent else None,
        contract_sha256=subagent.contract_sha256 if subagent else None,
        event=event,
    )


def _after(subagent: Subagent, event: Event, seq: int, at: str) -> Subagent:
    """The subagent as it stands after this event, with the moment of its own that it marks."""
    standing = fold(subagent.standing, event, seq)
    if event.type == events.SUBAGENT_STARTED:
        return changed(subagent, standing=standing, started_at=at)
    if event.type in (events.SUBAGENT_WAITING, events.SUBAGENT_FAILED, events.BLOCKED):
        return changed(subagent, standing=standing, ended_at=at)
    if event.type == events.STARTED:
        return changed(subagent, standing=standing, ended_at="")
    return subagent if standing is subagent.standing else changed(subagent, standing=standing)
