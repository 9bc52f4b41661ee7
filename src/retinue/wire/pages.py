"""What a page of the web door is made of, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retinue.domain.event import Recorded
from retinue.domain.ids import MemberId
from retinue.domain.lane import Lane, spans
from retinue.domain.page import Paid
from retinue.domain.recovery import Testimony
from retinue.domain.subagent import Counts, Task, Totals
from retinue.wire.result import usage_to_json
from retinue.wire.views import task_to_json, totals_to_json

SHOWN_ANSWER = 16 * 1024


def overview_to_json(task: Task, counts: Counts, totals: Totals) -> dict[str, Any]:
    """A task as a list shows it."""
    return task_to_json(task, counts) | {
        "last_seq": task.last_seq,
        "places": task.next_step,  # of planned steps, too, that have not begun
        "metrics": totals_to_json(totals),
    }


def condensed_to_json(recorded: Recorded) -> dict[str, Any]:
    """An event in one line: what it was, of whom, and its summary."""
    event = recorded.event
    return {
        "seq": recorded.seq,
        "ts": recorded.ts,
        "type": event.type,
        "agentInstance": event.subagent,
        "attempt": event.attempt or None,
        "by": event.by,
        "summary": event.summary,
    }


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
        "spans": [
            {
                "kind": span.kind,
                "start": span.start,
                "end": span.end or None,
                "attempt": span.attempt or None,
                "status": span.status or None,
            }
            for span in spans(lane)
        ],
    }


def team_to_json(testimony: Testimony | None, answers: Mapping[MemberId, str]) -> Any:
    """What a team claims of itself; None where it claimed nothing."""
    if testimony is None:
        return None
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
            }
            for member in testimony.members
        ],
    }


def paid_to_json(paid: Paid) -> dict[str, Any]:
    return {
        "ts": paid.ts,
        "attempt": paid.attempt,
        "model": f"{paid.provider}/{paid.model}",
        "status": paid.status,
        "input_tokens": paid.spending.input_tokens,
        "output_tokens": paid.spending.output_tokens,
        "cost": paid.spending.cost,
    }
