"""JSON views of tasks and subagents for people and agents."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from retinue.core.errors import add_hint_to_error
from retinue.core.events import BilledRequest, Recorded
from retinue.core.ids import MemberId
from retinue.core.lifecycle import ROSTER_STATES, State
from retinue.core.placement import NodeFacts
from retinue.core.plan import estimate_outcome
from retinue.core.result import Result, Testimony
from retinue.core.safe_text import reveal_hidden
from retinue.core.subagent import Attempt, Counts, Gate, Subagent, Task, Totals
from retinue.core.task_config import to_milliseconds
from retinue.core.timeline import Lane, build_spans
from retinue.formats.result_json import batch_to_json, result_to_json, usage_to_json

UNRESOLVED = "blocked_unresolved"  # close reason of a subagent with unanswered questions
BACKGROUND_NOTE = "Poll for subagent completion to retrieve results when ready."


def task_to_json(task: Task, counts: Counts) -> dict[str, Any]:
    """Return a task as one row; the counts by status add up to the total."""
    return {
        "task_id": task.id,
        "title": task.title,
        "state": task.state,
        "run_id": task.run,
        "outcome": estimate_outcome(task, counts).value,
        "created_at": task.created_at,
        "updated_at": task.updated_at,
        "subagents": counts.total,
        "counts": {
            "total": counts.total,
            "pending": counts.pending,
            "running": counts.running,
            "blocked": counts.blocked,
            "waiting_for_merge": counts.waiting_for_merge,
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
    """Return one row of the list: recorded state plus the child's own claims."""
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
    view |= _describe_lineage(subagent)
    if testimony is not None and testimony.phase is not None:
        view["phase"] = testimony.phase.value
    # A result outranks the testimony, which is only a claim.
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
        "elapsed_seconds": _compute_worked(subagent, result, now),
        "token_usage": usage_to_json(usage) if usage else {},
    }
    if standing.state is State.WAITING_FOR_MERGE:
        view["integrated_by"] = "run" if subagent.contract.outputs.in_order else "parent"
    if standing.close_reason:
        view["close_reason"] = standing.close_reason
    return view


def roster_to_json(subagents: Sequence[Subagent]) -> list[dict[str, Any]]:
    """Return the roster section of task.yaml."""
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
    row |= _describe_lineage(subagent)
    return row | ({"warning": warning} if warning else {})


def _describe_lineage(subagent: Subagent) -> dict[str, str]:
    """For a successor, return the first subagent of its line and the one before it."""
    contract = subagent.contract
    if not contract.continues:
        return {}
    return {"continues": contract.continues, "resumes": contract.resumes}


def reviewed_to_json(subagent: Subagent, commands: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return what a subagent would run, for the review before a root is trusted."""
    contract = subagent.contract
    return {
        "task_id": subagent.task,
        "subagent_id": subagent.id,
        "status": subagent.standing.status,
        "title": contract.step.title,
        "runtime_mode": contract.boundary.mode,
        "commands": [list(words) for words in commands],
    }


def format_ended_before(subagent: Subagent) -> str:
    """Return the warning for a repeated spawn call whose subagent has already ended."""
    return (
        f"{subagent.id} ended at {subagent.ended_at}: this is its result, and nothing was started; "
        "for new work use another id, or continue it"
    )


def format_other_timeout(
    subagent: Subagent, asked_seconds: float | None, *, was_blocked: bool = False
) -> str:
    """Return a warning if the subagent's timeout differs from the requested one; else empty."""
    has_ms = subagent.contract.execution.attempt_timeout_ms
    if asked_seconds is None or to_milliseconds(asked_seconds) == has_ms:
        return ""
    bounds = (
        "the range is subagent_min_timeout to subagent_max_timeout, and at most its parent's time"
    )
    why = "a blocked subagent continues under its contract" if was_blocked else bounds
    has = f"{has_ms / 1000:g} s"
    asked = f"{asked_seconds:g} s"
    return f"{subagent.id} has {has} for an attempt, not {asked} as asked: {why}"


def warnings_to_json(warnings: Sequence[str]) -> dict[str, Any]:
    """Return the `warnings` key; an empty mapping if there are none."""
    return {"warnings": list(warnings)} if warnings else {}


def unresolved_to_json(closed: Sequence[Subagent]) -> dict[str, Any]:
    """Return the ids of subagents that were closed with unanswered questions, with warnings."""
    names = [each.id for each in closed if each.standing.close_reason == UNRESOLVED]
    if not names:
        return {}
    said = [
        f"{name} was blocked and its questions were not answered: it is closed as failed"
        for name in names
    ]
    return {UNRESOLVED: names} | warnings_to_json(said)


def attempt_to_json(attempt: Attempt) -> dict[str, Any]:
    return {
        "attempt": attempt.number,
        "pid": attempt.pid or None,
        "started_at": attempt.started_at,
        "ended_at": attempt.ended_at or None,
        "result": result_to_json(attempt.result) if attempt.result else None,
    } | ({"node": attempt.place.partition("/")[0]} if attempt.place else {})


def nodes_to_json(
    nodes: Sequence[NodeFacts], heard: Mapping[str, float], *, current: bool
) -> list[dict[str, Any]]:
    """Return the nodes of a hub, those that serve first.

    Args:
        current: the hub answers; otherwise this is what was known before.
    """
    order = ("up", "draining", "suspected", "lost", "left")
    rows = sorted(nodes, key=lambda node: (order.index(node.state), node.name))
    return [
        {
            "node": node.name,
            "id": node.id,
            "state": node.state,
            "slots": node.slots,
            "busy": node.busy,
            "labels": list(node.labels),
            "version": node.version,
            "heard_seconds": round(heard.get(node.id, 0.0), 1),
            "isolation": node.isolation or "available",
            "memory_mb": node.memory_mb,
            "quota": node.quota,
            "current": current,
        }
        for node in rows
    ]


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
    """Return the spending of a task and of its subagents alone, as in metrics_summary.json."""
    return {
        "totals": {
            "input_tokens": totals.input_tokens + totals.root_input_tokens,
            "output_tokens": totals.output_tokens + totals.root_output_tokens,
            # Rounded, because the sum of two floats can show a trailing error.
            "estimated_cost": round(totals.estimated_cost + totals.root_cost, 9),
            "agent_cost": totals.root_cost,
            "subagent_cost": totals.estimated_cost,
            **_describe_unpriced(totals.all_unpriced_models),
        },
        "subagents": {
            "total_subagents": totals.subagents,
            "total_input_tokens": totals.input_tokens,
            "total_output_tokens": totals.output_tokens,
            "total_estimated_cost": totals.estimated_cost,
            **_describe_unpriced(totals.unpriced_models),
        },
    }


def _describe_unpriced(models: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the models without a known price; an empty mapping if there are none."""
    return {"unpriced_models": list(models)} if models else {}


def metrics_to_text(totals: Totals) -> str:
    return _format_pretty(totals_to_json(totals))


def task_status_to_text(task: Task, counts: Counts) -> str:
    return _format_pretty(task_to_json(task, counts) | {"last_seq": task.last_seq})


def compute_elapsed(started: str, ended: str) -> float:
    """Return the seconds between two time stamps; 0 if the clock was set back."""
    if not started:
        return 0.0
    seconds = (datetime.fromisoformat(ended) - datetime.fromisoformat(started)).total_seconds()
    return max(0.0, round(seconds, 3))


def _compute_worked(subagent: Subagent, result: Result | None, now: str) -> float:
    """Return the working time in seconds."""
    # The end may have been detected late. The result has the measured time.
    if result is not None and subagent.ended_at:
        return result.execution_time_seconds
    return compute_elapsed(subagent.started_at, subagent.ended_at or now)


def _format_pretty(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=True) + "\n"


SHOWN_ANSWER = 16 * 1024


def graph_to_json(plan: Mapping[str, Any], not_started: Mapping[str, object]) -> dict[str, Any]:
    """Return a recorded plan as a graph: its steps, what each waits for and where it stands."""
    known = {str(step.get("id", "")): step for step in plan["plan"].get("steps", [])}
    return {
        "goal": str(plan["plan"].get("goal", "")),
        "parent": plan.get("parent"),
        "retry_of": plan.get("retry_of"),
        "steps": [
            {
                "id": name,
                "title": str(known.get(name, {}).get("title", "")),
                "depends_on": [str(each) for each in known.get(name, {}).get("depends_on", [])],
                "status": plan["standings"].get(name),
                "not_started": not_started.get(name),
            }
            for name in plan["order"]
        ],
    }


def overview_to_json(task: Task, counts: Counts, totals: Totals) -> dict[str, Any]:
    """Return a task as the overview lists it."""
    return task_to_json(task, counts) | {
        "last_seq": task.last_seq,
        "places": task.next_step,  # includes planned steps that have not begun
        "metrics": totals_to_json(totals),
    }


def condensed_to_json(recorded: Recorded) -> dict[str, Any]:
    """Return an event without its payload."""
    event = recorded.event
    document = {
        "seq": recorded.seq,
        "ts": recorded.ts,
        "type": event.type,
        "agentInstance": event.subagent,
        "attempt": event.attempt or None,
        "by": event.by,
        "summary": event.summary,
    }
    # The end of a run or a plan is shown with its outcome.
    if "outcome" in event.payload:
        document["outcome"] = event.payload["outcome"]
    return document


def lane_to_json(lane: Lane) -> dict[str, Any]:
    return {
        "agentInstance": lane.id,
        "step_idx": lane.step_idx,
        "title": lane.title,
        "status": lane.standing.status,
        "state": lane.standing.state.value,
        "attempt": lane.standing.attempt,
        "created_at": lane.created_at,
        "close_reason": lane.standing.close_reason or None,
        "settled_at": lane.settled_at or None,
        "parent": lane.parent or None,
        "agent": lane.agent,
        "node": lane.stints[-1].node or None if lane.stints else None,
        "answer": lane.answer,
        "error": lane.error,
        "input_tokens": lane.spending.input_tokens,
        "output_tokens": lane.spending.output_tokens,
        "cost": lane.spending.cost,
        "unpriced": lane.unpriced,
        "spans": [
            {
                "kind": span.kind,
                "start": span.start,
                "end": span.end or None,
                "attempt": span.attempt or None,
                "status": span.status or None,
                "seconds": span.seconds,
                "node": span.node or None,
            }
            for span in build_spans(lane)
        ],
    }


def team_to_json(testimony: Testimony | None, answers: Mapping[MemberId, str]) -> Any:
    """Return the team's own claims; None if there is no testimony."""
    if testimony is None:
        return None
    doing = testimony.sessions
    return {
        "phase": testimony.phase.value if testimony.phase else None,
        "winner": testimony.winner,
        "completion_percentage": testimony.completion_percentage,
        "token_usage": usage_to_json(testimony.usage),
        "problem": testimony.problem or None,
        "members": [
            {
                "member": member,
                "votes": testimony.votes.get(member, 0),
                "answer": answers[member][:SHOWN_ANSWER] if member in answers else None,
                "doing": doing[member].doing if member in doing else None,
            }
            for member in testimony.members
        ],
    }


def model_request_to_json(request: BilledRequest) -> dict[str, Any]:
    return {
        "ts": request.ts,
        "attempt": request.attempt,
        "model": f"{request.provider}/{request.model}",
        "status": request.status,
        "input_tokens": request.spending.input_tokens,
        "output_tokens": request.spending.output_tokens,
        "cost": request.spending.cost,
        "priced": request.priced,
        "seconds": request.seconds,
        "cached_tokens": request.spending.cached_tokens,
        "reasoning_tokens": request.spending.reasoning_tokens,
        "estimated": request.spending.estimated,
    }


def request_to_json(request: BilledRequest) -> dict[str, Any]:
    """Return a model request with its number and the subagent that made it."""
    names = {"entry": request.entry, "task_id": request.task, "subagent_id": request.subagent}
    return names | model_request_to_json(request)


MOST_OUTPUT_LINES = 40  # last lines of a failed command's output


UNSETTLED = ("pending", "running", "waiting_for_merge")  # statuses without a result
Part = tuple[Subagent, Result | None]


def joined_to_json(
    task: Task, outcome: str, parts: Sequence[Part], details: Mapping[str, object]
) -> dict[str, Any]:
    """Return all parts of a run in step order; `details` come from the event that ended it."""
    results = [result for _, result in parts if result is not None]
    unsettled = [subagent.standing.status for subagent, result in parts if result is None]
    summary: dict[str, int] = batch_to_json(results)["summary"] | {"total": len(parts)}
    summary |= {word: unsettled.count(word) for word in UNSETTLED}
    never = list_not_started(details)
    return {
        "task_id": task.id,
        "title": task.title,
        "run_id": task.run,
        "outcome": outcome,
        "subagents": [
            {
                "agentInstance": subagent.id,
                "step_idx": subagent.step_idx,
                "title": subagent.contract.step.title,
                "status": subagent.standing.status,
                "result": result_to_json(result) if result else None,
            }
            for subagent, result in parts
        ],
        "not_started": never,
        "summary": summary | {"not_started": len(never)},
    }


def list_not_started(details: Mapping[str, object]) -> dict[str, str]:
    """Return the planned steps that were never started, each with the reason."""
    found = details.get("not_started")
    return {str(name): str(why) for name, why in found.items()} if isinstance(found, dict) else {}


def joined_to_markdown(document: dict[str, Any]) -> str:
    lines = [f"# {document['title']}", "", f"Run {document['run_id']}: {document['outcome']}", ""]
    for part in document["subagents"]:
        result = part["result"] or {}
        lines += [f"## {part['step_idx']}. {part['agentInstance']}: {part['status']}", ""]
        lines += [part["title"], ""]
        if result.get("error"):
            lines += [f"Error: {add_hint_to_error(result['error'])}", ""]
        if result.get("error_output"):
            last = "\n".join(result["error_output"].splitlines()[-MOST_OUTPUT_LINES:])
            lines += ["Output:", "", _quote_markdown(last), ""]
        if result.get("answer"):
            lines += [_quote_markdown(result["answer"]), ""]
        if result:
            lines += [f"Workspace: `{result['workspace']}`", ""]
    for name, why in document["not_started"].items():
        lines += [f"## {name}: not started", "", why, ""]
    # People read this file in a terminal: control characters of a child must not act there.
    return reveal_hidden("\n".join(lines))


def _quote_markdown(text: str) -> str:
    """Quote a child's text, so that it cannot start a heading."""
    return "\n".join(f"> {line}" for line in text.splitlines())
