"""What people and agents are shown of tasks and subagents, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from retinue.domain.gate import outcome_by_now
from retinue.domain.lifecycle import ROSTER_STATES
from retinue.domain.policy import milliseconds
from retinue.domain.recovery import Testimony
from retinue.domain.result import Result
from retinue.domain.subagent import Attempt, Counts, Gate, Subagent, Task, Totals
from retinue.wire.result import result_to_json, usage_to_json

FIRST_MOMENT = datetime.min.replace(tzinfo=UTC).timestamp()
LAST_MOMENT = datetime.max.replace(microsecond=0, tzinfo=UTC).timestamp()
BACKGROUND_NOTE = "Poll for subagent completion to retrieve results when ready."


def task_to_json(task: Task, counts: Counts) -> dict[str, Any]:
    """A task in one row. Its counts are by status, and add up to their total."""
    return {
        "task_id": task.id,
        "title": task.title,
        "state": task.state,
        "run_id": task.run,
        "outcome": outcome_by_now(task, counts).value,
        "created_at": task.created_at,
        "updated_at": task.updated_at,
        "subagents": counts.total,
        "counts": {
            "total": counts.total,
            "pending": counts.pending,
            "running": counts.running,
            "blocked": counts.blocked,
            "completed": counts.completed,
            "failed": counts.failed,
            "cancelled": counts.cancelled,
        },
        "unclosed": counts.unclosed,
    }


def subagent_to_json(
    subagent: Subagent,
    *,
    workspace: str,
    testimony: Testimony | None,
    result: Result | None,
    now: str,
) -> dict[str, Any]:
    """One row of the list: the parent's truth, with what the child claims of itself."""
    standing = subagent.standing
    view: dict[str, Any] = {
        "agentInstance": subagent.id,
        "subagent_id": subagent.id,
        "task_id": subagent.task,
        "agent": subagent.contract.agent,
        "status": standing.status,
        "state": standing.state.value,
        "step_idx": subagent.step_idx,
        "attempt": standing.attempt,
    }
    if subagent.contract.continues:
        view["continues"] = subagent.contract.continues
    if testimony is not None and testimony.phase is not None:
        view["phase"] = testimony.phase.value
    percentage = result.completion_percentage if result else None
    if testimony is not None and percentage is None:
        percentage = testimony.completion_percentage
    if percentage is not None:
        view["completion_percentage"] = percentage
    usage = result.token_usage if result else testimony.usage if testimony else None
    view |= {
        "task": subagent.contract.step.title,
        "workspace": workspace,
        "started_at": subagent.started_at or None,
        "elapsed_seconds": _worked(subagent, result, now),
        "token_usage": usage_to_json(usage) if usage else {},
    }
    if standing.close_reason:
        view["close_reason"] = standing.close_reason
    return view


def roster_to_json(subagents: Sequence[Subagent]) -> list[dict[str, Any]]:
    """As task.yaml has it."""
    return [
        {
            "instance": subagent.id,
            "agent": subagent.contract.agent,
            "state": ROSTER_STATES[subagent.standing.status],
            "skills": list(subagent.contract.skills),
        }
        for subagent in subagents
    ]


def spawned_to_json(subagent: Subagent, *, workspace: str, status_file: str) -> dict[str, Any]:
    row = {
        "subagent_id": subagent.id,
        "status": subagent.standing.status,
        "workspace": workspace,
        "workspace_path": workspace,
        "status_file": status_file,
    }
    warning = "; ".join(subagent.contract.warnings)
    return row | ({"warning": warning} if warning else {})


def ended_before(subagent: Subagent) -> str:
    """What a repeated call is told of a subagent that it does not start again."""
    return (
        f"{subagent.id} ended at {subagent.ended_at}: that is its result, and nothing was started; "
        "for new work take another id, or continue it"
    )


def other_time(
    subagent: Subagent, asked_seconds: float | None, *, was_blocked: bool = False
) -> str:
    """What whoever asked for a time is told of a subagent that has another; else nothing."""
    has_ms = subagent.contract.execution.attempt_timeout_ms
    if asked_seconds is None or milliseconds(asked_seconds) == has_ms:
        return ""
    bounds = (
        "a time lies between subagent_min_timeout and subagent_max_timeout, and within its parent's"
    )
    why = "one that was blocked goes on under its contract" if was_blocked else bounds
    has, asked = f"{has_ms / 1000:g} s", f"{asked_seconds:g} s"
    return f"{subagent.id} has {has} for an attempt, not {asked} as asked: {why}"


def warnings_to_json(warnings: Sequence[str]) -> dict[str, Any]:
    """What an answer says beside its subject; nothing where there is nothing to say."""
    return {"warnings": list(warnings)} if warnings else {}


def attempt_to_json(attempt: Attempt) -> dict[str, Any]:
    return {
        "attempt": attempt.number,
        "pid": attempt.pid or None,
        "started_at": attempt.started_at,
        "ended_at": attempt.ended_at or None,
        "result": result_to_json(attempt.result) if attempt.result else None,
    }


def contract_to_json(subagent: Subagent) -> Any:
    return json.loads(subagent.contract_text)


def gate_to_json(gate: Gate) -> dict[str, Any]:
    return {
        "gate_id": gate.id,
        "agentInstance": gate.subagent,
        "state": gate.state,
        "questions": list(gate.questions),
        "answer": gate.answer or None,
    }


def totals_to_json(totals: Totals) -> dict[str, Any]:
    """What a task came to, and what its subagents alone did; as in its metrics_summary.json."""
    return {
        "totals": {
            "input_tokens": totals.input_tokens + totals.root_input_tokens,
            "output_tokens": totals.output_tokens + totals.root_output_tokens,
            "estimated_cost": round(totals.estimated_cost + totals.root_cost, 9),
            "agent_cost": totals.root_cost,
            "subagent_cost": totals.estimated_cost,
        },
        "subagents": {
            "total_subagents": totals.subagents,
            "total_input_tokens": totals.input_tokens,
            "total_output_tokens": totals.output_tokens,
            "total_estimated_cost": totals.estimated_cost,
        },
    }


def metrics_to_text(totals: Totals) -> str:
    return _pretty(totals_to_json(totals))


def task_status_to_text(task: Task, counts: Counts) -> str:
    return _pretty(task_to_json(task, counts) | {"last_seq": task.last_seq})


def elapsed(started: str, ended: str) -> float:
    """Seconds between two time stamps; never less than none, whatever a clock did."""
    if not started:
        return 0.0
    seconds = (datetime.fromisoformat(ended) - datetime.fromisoformat(started)).total_seconds()
    return max(0.0, round(seconds, 3))


def timestamp(seconds: float) -> str:
    """A moment as UTC, to the millisecond; the first or last there is for one beyond all years."""
    moment = datetime.fromtimestamp(min(max(seconds, FIRST_MOMENT), LAST_MOMENT), UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _worked(subagent: Subagent, result: Result | None, now: str) -> float:
    """For how long; an end may have been noticed late, and then its result knows better."""
    if result is not None and subagent.ended_at:
        return result.execution_time_seconds
    return elapsed(subagent.started_at, subagent.ended_at or now)


def _pretty(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=True) + "\n"
