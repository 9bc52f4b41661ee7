"""Conversion between database rows and domain values."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from retinue.core.contract import Contract
from retinue.core.events import Event, Recorded
from retinue.core.ids import RunId, SubagentId, TaskId
from retinue.core.lifecycle import Standing, State
from retinue.core.subagent import Attempt, Gate, Subagent, Task
from retinue.formats.contract_json import contract_from_text
from retinue.formats.event_json import to_text
from retinue.formats.result_json import result_from_text


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
    """Return a column that schema 1 lacks: an untrusted database is read as it is."""
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
