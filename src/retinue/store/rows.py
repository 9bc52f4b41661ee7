"""Rows of the database as domain values, and back."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from retinue.domain.contract import Contract
from retinue.domain.event import Event, Recorded
from retinue.domain.ids import RunId, SubagentId, TaskId
from retinue.domain.lifecycle import Standing, State
from retinue.domain.subagent import Attempt, Gate, Subagent, Task
from retinue.wire.contract import contract_from_text
from retinue.wire.event import to_text
from retinue.wire.result import result_from_text


def task_of(row: sqlite3.Row) -> Task:
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


def subagent_of(row: sqlite3.Row, contract: Contract | None = None) -> Subagent:
    """Args:
    contract: that of the row, where it is known already: reading it is most of the work.
    """
    return Subagent(
        id=SubagentId(row["sub_agent_id"]),
        task=TaskId(row["task_id"]),
        run=RunId(row["run_id"]),
        step_idx=row["step_idx"],
        contract=contract or contract_from_text(row["context_json"]),
        contract_text=row["context_json"],
        contract_sha256=row["contract_sha256"],
        standing=standing_of(row),
        created_at=row["created_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
    )


def standing_of(row: sqlite3.Row) -> Standing:
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
    )


def standing_values(standing: Standing) -> dict[str, Any]:
    return vars(standing) | {"state": standing.state.value}


def attempt_of(row: sqlite3.Row) -> Attempt:
    return Attempt(
        number=row["number"],
        boot_id=row["boot_id"],
        pid=row["pid"],
        start_ticks=row["start_ticks"],
        started_at=row["started_at"],
        started_monotonic_ms=row["started_monotonic_ms"],
        ended_at=row["ended_at"],
        result=result_from_text(row["result_json"]) if row["result_json"] else None,
    )


def gate_of(row: sqlite3.Row) -> Gate:
    return Gate(
        id=row["gate_id"],
        subagent=SubagentId(row["sub_agent_id"]),
        state=row["state"],
        questions=tuple(json.loads(row["questions"])),
        answer=row["answer"],
    )


def recorded_of(row: sqlite3.Row) -> Recorded:
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


def event_values(recorded: Recorded) -> dict[str, Any]:
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
