"""Writer of events and of all rows that follow from them.

Nothing else inserts or changes tasks, runs, subagents, attempts or results, neither during
operation nor when a log is replayed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from retinue.core import events
from retinue.core.data_structures import replace_fields
from retinue.core.events import Event, Recorded
from retinue.core.ids import SubagentId
from retinue.core.lifecycle import State
from retinue.core.result import Result
from retinue.core.subagent import Subagent, Task, apply_event
from retinue.formats.result_json import result_to_payload, result_to_text
from retinue.ports import EventFacts
from retinue.store.database import Database
from retinue.store.reads import Records, from_recorded, from_standing

NO_SUBAGENTS: Mapping[SubagentId, Subagent] = {}
ATTEMPT_ENDS = frozenset({events.COMPLETED, events.FAILED, events.CANCELLED, events.BLOCKED})
SUBAGENT_ENDS = frozenset(
    {
        events.SUBAGENT_WAITING,
        events.SUBAGENT_FAILED,
        events.GATE_BLOCKED,
        events.MERGED,
        events.COPIED,
        events.MERGE_FAILED,
        events.OUTPUT_ACCEPTED,
    }
)


class AppendResult(NamedTuple):
    """Recorded events and the state after them."""

    recorded: list[Recorded]
    moved: dict[SubagentId, Subagent]  # subagents of these events, in their new state
    task: Task | None  # its new state; None if it has to be read


class EventWriter:
    """Writer for use inside a transaction of the caller."""

    def __init__(self, database: Database, records: Records) -> None:
        self._db = database
        self._records = records

    def open_task(self, task: Task) -> None:
        """Insert the rows of a task and its run."""
        self._db.run(
            "insert_task",
            task_id=task.id,
            title=task.title,
            description=task.description,
            at=task.created_at,
        )
        self._db.run("insert_run", run_id=task.run, task_id=task.id, at=task.created_at)

    def insert_subagent(self, subagent: Subagent) -> None:
        """Insert the row of a subagent in state `created`."""
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
        facts: EventFacts,
        at: str,
        known: Mapping[SubagentId, Subagent] = NO_SUBAGENTS,
    ) -> AppendResult:
        """Append events to the task and update the rows that they change.

        Args:
            known: states of subagents in this transaction, which then need not be read.

        Raises:
            IllegalTransition: an event does not fit its subagent's state; nothing was written.
        """
        recorded: list[Recorded] = []
        moved: dict[SubagentId, Subagent] = {}
        changed: set[SubagentId] = set()  # subagents whose state changed; many events change none
        for seq, event in enumerate(new, start=task.last_seq + 1):
            subagent = None
            if (name := event.subagent) is not None:
                before = moved.get(name) or known.get(name)
                before = before or self._records.get_subagent(task.id, name)
                moved[name] = subagent = apply_event(before, event, seq, at)
                if subagent is not before:
                    changed.add(name)
            recorded.append(_make_recorded(task, seq, at, event, subagent))
        # All events fit, so nothing below can be refused. Write only from here on.
        self._db.run_all("insert_event", map(from_recorded, recorded))
        for subagent in moved.values():
            if subagent.id in changed:
                self._write_standing(subagent)
            self._write_facts(subagent, facts, at)
        last_seq = task.last_seq + len(recorded)
        self._db.run("bump_task", task_id=task.id, last_seq=last_seq, at=at)
        followed = [self._follow(task, event, at) for event in new]
        after = None if any(followed) else replace_fields(task, last_seq=last_seq, updated_at=at)
        return AppendResult(recorded, moved, after)

    def _follow(self, task: Task, event: Event, at: str) -> bool:
        """Update rows for an event of the task itself; return whether the task's row changed."""
        if event.type == events.TASK_CLOSED:
            self._db.run("close_task", task_id=task.id)
        elif event.type == events.INTEGRATION_ORDER:  # reserve the step numbers of a plan
            reserved = event.payload.get("reserved", 0)
            self._db.run("bump_run", run_id=task.run, next_step=reserved)
        elif event.type == events.RUN_ENDED:
            outcome = event.payload["outcome"]
            self._db.run("end_run", run_id=task.run, outcome=outcome, at=at)
        else:
            return event.type == events.SUBAGENT_CREATED  # it took a step number, too
        return True

    def _write_standing(self, subagent: Subagent) -> None:
        self._db.run(
            "update_standing",
            task_id=subagent.task,
            sub_agent_id=subagent.id,
            started_at=subagent.started_at,
            ended_at=subagent.ended_at,
            **from_standing(subagent.standing),
        )

    def _write_facts(self, subagent: Subagent, facts: EventFacts, at: str) -> None:
        whose = {"task_id": subagent.task, "sub_agent_id": subagent.id}
        if (started := facts.attempt) is not None:
            self._db.run(
                "insert_attempt",
                **whose,
                number=started.number,
                boot_id=started.boot_id,
                pid=started.pid,
                start_ticks=started.start_ticks,
                place=started.place,
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

    def _write_gate(self, subagent: Subagent, facts: EventFacts) -> None:
        # A finished subagent cannot use an answer any more.
        over = subagent.standing.state in (State.FAILED, State.CLOSED)
        if not (facts.questions or facts.answer is not None or over):
            return
        where = {"task_id": subagent.task, "gate_id": subagent.gate}
        if facts.questions:
            questions = json.dumps(facts.questions)
            self._db.run("insert_gate", **where, sub_agent_id=subagent.id, questions=questions)
        if facts.answer is not None:
            self._db.run("answer_gate", **where, state="approved", answer=facts.answer)
        elif over:
            self._db.run("answer_gate", **where, state="rejected", answer="")


def attach_results(new: Sequence[Event], facts: EventFacts) -> Sequence[Event]:
    """Return the events with the results that are stored with them in their payloads.

    The event of an attempt's end contains the result of the attempt. The event of a subagent's end
    contains the result of the subagent, unless that equals the attempt's.
    """
    if facts.ended_result is not None:
        new = _attach(new, ATTEMPT_ENDS, facts.ended_result)
    if facts.result is not None and facts.result != facts.ended_result:
        new = _attach(new, SUBAGENT_ENDS, facts.result)
    return new


def _attach(new: Sequence[Event], kinds: Collection[str], result: Result) -> Sequence[Event]:
    """Return the events with a result in the first of these kinds."""
    for place, event in enumerate(new):
        if event.type in kinds:
            payload = {**event.payload, **result_to_payload(result)}
            return [*new[:place], replace_fields(event, payload=payload), *new[place + 1 :]]
    return new


def _make_recorded(
    task: Task, seq: int, at: str, event: Event, subagent: Subagent | None
) -> Recorded:
    return Recorded(
        seq=seq,
        ts=at,
        task=task.id,
        run=task.run,
        step_idx=subagent.step_idx if subagent else None,
        contract_sha256=subagent.contract_sha256 if subagent else None,
        event=event,
    )
