"""Constructors of the events in a subagent's lifecycle."""

from __future__ import annotations

from retinue.core import events
from retinue.core.events import Event
from retinue.core.join_result import POLICY, JoinFailed
from retinue.core.lifecycle import (
    JOIN,
    SETTLES,
    FailureKind,
    Next,
    State,
    close_reason,
    name_failure,
)
from retinue.core.placement import NodeFacts
from retinue.core.result import AgentNotice, Ending, EndKind, Refusal, Result, Status
from retinue.core.safe_text import shorten
from retinue.core.subagent import Attempt, Subagent


def make_started(subagent: Subagent, attempt: Attempt) -> list[Event]:
    """Return the events of a launched attempt; the first attempt also starts the subagent."""
    began = Event(
        type=events.STARTED,
        subagent=subagent.id,
        attempt=attempt.number,
        summary=f"{subagent.id} attempt {attempt.number} is up",
        # The identity of the process, by which it can be found again from the log alone.
        payload={
            "pid": attempt.pid,
            "boot_id": attempt.boot_id,
            "start_ticks": attempt.start_ticks,
            "started_monotonic_ms": attempt.started_monotonic_ms,
        }
        | ({"place": attempt.place} if attempt.place else {}),
    )
    placed = []
    if attempt.place:
        node = attempt.place.partition("/")[0]
        payload = {"node": node, "place": attempt.place}
        summary = f"{subagent.id} attempt {attempt.number} is placed on {node}"
        placed = [
            Event(
                type=events.PLACED,
                subagent=subagent.id,
                attempt=attempt.number,
                summary=shorten(summary),
                payload=payload,
            )
        ]
    first = subagent.standing.state is State.CREATED
    return [*placed, *([_make_begun(subagent, launched=True)] if first else []), began]


def make_node_event(what: str, node: NodeFacts) -> Event:
    """Return the event of a node that joined, is suspected, was lost or left."""
    return Event(
        type=f"{events.NODE}{what}",
        summary=shorten(f"node {node.name} {what}"),
        payload={"node": node.name, "node_id": node.id, "labels": list(node.labels)},
    )


def make_never_launched(subagent: Subagent, reason: str) -> list[Event]:
    """Return the start event of a subagent that never had a process."""
    # The lifecycle has no way from `created` to an end except through `running`.
    if subagent.standing.state is not State.CREATED:
        return []
    return [_make_begun(subagent, launched=False, why=reason)]


def make_attempt_ended(
    subagent: Subagent, attempt: int, result: Result, ending: Ending, then: Next
) -> list[Event]:
    kind = {
        Status.COMPLETED: events.COMPLETED,
        Status.COMPLETED_BUT_TIMEOUT: events.COMPLETED,
        Status.BLOCKED: events.BLOCKED,
        Status.CANCELLED: events.CANCELLED,
    }.get(result.status, events.FAILED)
    outcome = kind.removeprefix("agent.")
    details = _describe_end(subagent, kind, result, ending)
    by = subagent.standing.cancel_by if kind is events.CANCELLED else "steward"
    why = result.error or ending.describe()
    return [
        Event(
            type=kind,
            subagent=subagent.id,
            attempt=attempt,
            by=by,
            summary=shorten(f"{subagent.id} attempt {attempt} {outcome}: {why}"),
            payload=details,
        ),
        Event(
            type=events.SUBAGENT_ATTEMPT,
            subagent=subagent.id,
            attempt=attempt,
            summary=shorten(f"{subagent.id} attempt {attempt}: {result.status.value}"),
            payload={
                "attempt": attempt,
                "status": result.status.value,
                "ran": ending.kind not in (EndKind.NEVER_RAN, EndKind.NODE_LOST),
                "next": then.value,
            }
            | ({"node_lost": True} if ending.kind is EndKind.NODE_LOST else {}),
        ),
    ]


def _describe_end(
    subagent: Subagent, kind: str, result: Result, ending: Ending
) -> dict[str, object]:
    """Return the payload of an attempt's end."""
    details: dict[str, object] = {
        "status": result.status.value,
        "ended": ending.kind.value,
        "exit_code": ending.exit_code,
        "signal": ending.signal,
        "duration_ms": ending.duration_ms,
    }
    match kind:
        case events.FAILED:
            return details | {"reason": result.error}
        case events.CANCELLED:
            reason = subagent.standing.cancel_reason
            return details | {"reason": reason, "signals": list(ending.signals_sent)}
        case events.BLOCKED:
            asked = list(result.questions)
            return details | {"reason": "; ".join(asked), "questions": asked}
    return details


def make_blocked(subagent: Subagent, attempt: int, result: Result) -> Event:
    gate = subagent.gate
    return Event(
        type=events.GATE_BLOCKED,
        subagent=subagent.id,
        attempt=attempt,
        summary=shorten(f"gate {gate} waits for an answer: {'; '.join(result.questions)}"),
        payload={"gateId": gate, "questions": list(result.questions)},
    )


def make_review(subagent: Subagent, question: str) -> Event:
    """Return the event of output that a person is to approve before it is joined."""
    gate = subagent.gate
    return Event(
        type=events.GATE_BLOCKED,
        subagent=subagent.id,
        attempt=subagent.standing.attempt,
        summary=shorten(f"gate {gate} waits for approval: {question}"),
        payload={"gateId": gate, "questions": [question], "review": True},
    )


def make_answered(subagent: Subagent, by: str, message: str) -> Event:
    gate = subagent.gate
    return Event(
        type=events.GATE_ANSWERED,
        subagent=subagent.id,
        attempt=subagent.standing.attempt,
        by=by,
        summary=shorten(f"gate {gate} answered: {message}"),
        payload={"gateId": gate, "answer": message},
    )


def make_settled(subagent: Subagent, result: Result, ending: Ending | None) -> Event:
    """Return the event by which the subagent leaves `running` for good."""
    if result.success:
        return Event(
            type=events.SUBAGENT_WAITING,
            subagent=subagent.id,
            summary=shorten(f"{subagent.id} delivered: {result.answer or ''}"),
            payload={"status": result.status.value} | _describe_join(subagent),
        )
    return Event(
        type=events.SUBAGENT_FAILED,
        subagent=subagent.id,
        summary=shorten(f"{subagent.id} failed: {result.error or result.status.value}"),
        payload={
            "status": result.status.value,
            "failure_kind": name_failure(result, ending).value,
            "reason": result.error,
            "close_reason": close_reason(result, ending, subagent.standing),
        },
    )


def _describe_join(subagent: Subagent) -> dict[str, object]:
    """Return how and by whom the output is joined; empty if it is accepted as it is."""
    outputs = subagent.contract.outputs
    if not outputs.joined_later:
        return {}
    return {
        "integration": outputs.integration,
        "awaits": JOIN if outputs.in_order else "parent",
    }


def mark_settled_again(subagent: Subagent) -> dict[str, object]:
    """Return a mark for the end of a join if the subagent has settled before.

    It makes the subagent settle again, so that waiters learn how the join ended.
    """
    standing = subagent.standing
    has_settled = standing.state is State.WAITING_FOR_MERGE and standing.settled_seq > 0
    return {SETTLES: True} if has_settled else {}


def make_accepted(subagent: Subagent) -> Event:
    return Event(
        type=events.OUTPUT_ACCEPTED,
        subagent=subagent.id,
        summary=f"{subagent.id}: output accepted as it is",
        payload={"integration": subagent.contract.outputs.integration}
        | mark_settled_again(subagent),
    )


def make_not_joined(
    subagent: Subagent, failure: JoinFailed, kept: dict[str, object], by: str = "steward"
) -> Event:
    """Return the event of output that was not joined; it fails the subagent."""
    kind = FailureKind.POLICY if failure.code == POLICY else FailureKind.INTEGRATION
    return Event(
        type=events.MERGE_FAILED,
        subagent=subagent.id,
        by=by,
        summary=shorten(f"{subagent.id} was not joined: {failure.message}"),
        payload={
            "status": Status.ERROR.value,
            "failure_kind": kind.value,
            "close_reason": failure.code,
            "conflicted_files": list(failure.files),
            "message": failure.in_short,
            **kept,
            **mark_settled_again(subagent),
        },
    )


def make_closed(subagent: Subagent, final_status: str, reason: str, by: str = "steward") -> Event:
    return Event(
        type=events.SUBAGENT_CLOSED,
        subagent=subagent.id,
        by=by,
        summary=f"{subagent.id} closed: {final_status} ({reason})",
        payload={"final_status": final_status, "close_reason": reason},
    )


def make_automatic_close(subagent: Subagent, final_status: str, reason: str) -> list[Event]:
    """Return the close event if the contract says close_on_completion, else nothing."""
    follows = subagent.contract.execution.close_on_completion
    return [make_closed(subagent, final_status, reason)] if follows else []


def make_delegated(parent: Subagent, children: int) -> Event:
    depth = parent.contract.depth + 1
    return Event(
        type=events.DELEGATION_GRANTED,
        subagent=parent.id,
        attempt=parent.standing.attempt,
        by="child",
        summary=f"{parent.id} delegates to {children} subagents at depth {depth}",
        payload={"depth": depth, "children": children},
    )


def make_delegation_denied(parent: Subagent, reason: str, **more: object) -> Event:
    """Args: more: member and tool, or `times`, the number of denials so far; some are skipped."""
    depth = parent.contract.depth + 1
    return Event(
        type=events.DELEGATION_DENIED,
        subagent=parent.id,
        attempt=parent.standing.attempt,
        by="child",
        summary=shorten(f"{parent.id} may not delegate: {reason}"),
        payload={"depth": depth, "reason": shorten(reason, 1000), **more},
    )


def make_refused(subagent: Subagent, attempt: int, refusal: Refusal) -> Event:
    """Return the event of a tool call or delegation that a member was denied."""
    if refusal.delegation:
        who = {"member": refusal.member, "tool": refusal.tool}
        return make_delegation_denied(subagent, refusal.reason, **who)
    return Event(
        type=events.TOOL_DENIED,
        subagent=subagent.id,
        attempt=attempt,
        by="child",
        summary=shorten(f"{refusal.member} may not use {refusal.tool}: {refusal.reason}"),
        payload={
            "member": refusal.member,
            "tool": refusal.tool,
            "reason": shorten(refusal.reason, 1000),
        },
    )


def _describe_session(resumed: object) -> str:
    words = {
        "fresh": "began a new session",
        "native": "went on in its own session",
        "transcript": "began a new session with a transcript of the old one",
    }
    return words.get(str(resumed), f"began a session ({resumed})")


def _describe_steering(how: object) -> str:
    if how == "interrupted":
        return "a message interrupted its turn"
    return f"a message reached it {how}"


def make_agent_notice(subagent: Subagent, attempt: int, notice: AgentNotice) -> Event:
    """Return the event of something that happened to a coding agent."""
    facts = dict(notice.facts)
    match notice.kind:
        case "agent_session":
            kind = events.AGENT_SESSION
            said = f"{facts['agent']} {facts['version']} {_describe_session(facts['resumed'])}"
        case "agent_steered":
            kind, said = events.AGENT_STEERED, _describe_steering(facts["how"])
        case "agent_permission":
            kind, said = events.AGENT_PERMISSION, f"{facts['answer']} the use of {facts['tool']}"
        case _:
            kind, said = events.AGENT_WARNING, facts.get("text", "")
    return Event(
        type=kind,
        subagent=subagent.id,
        attempt=attempt,
        by="child",
        summary=shorten(f"{notice.member}: {said}"),
        payload={"member": notice.member, **facts},
    )


def make_message_sent(subagent: Subagent, by: str, text: str, *, urgent: bool = False) -> Event:
    return Event(
        type=events.MESSAGE_SENT,
        subagent=subagent.id,
        attempt=subagent.standing.attempt,
        by=by,
        summary=shorten(f"message to {subagent.id}: {text}"),
        payload={"message": shorten(text, 4000)} | ({"urgent": True} if urgent else {}),
    )


def make_cancel_requested(subagent: Subagent, by: str, reason: str) -> Event:
    return Event(
        type=events.CANCEL_REQUESTED,
        subagent=subagent.id,
        attempt=subagent.standing.attempt,
        by=by,
        summary=shorten(
            f"{subagent.id}: cancel requested by {by}" + (f": {reason}" if reason else "")
        ),
        payload={"reason": reason},
    )


def make_cancelled_without_process(subagent: Subagent, by: str, reason: str) -> list[Event]:
    """Return the end of a subagent that waits in the queue or for an answer."""
    attempt = subagent.standing.attempt
    return [
        *make_never_launched(subagent, "cancelled while pending"),
        Event(
            type=events.CANCELLED,
            subagent=subagent.id,
            attempt=attempt,
            by=by,
            summary=shorten(f"{subagent.id} cancelled by {by}" + (f": {reason}" if reason else "")),
            payload={"reason": reason, "signals": []},
        ),
    ]


def _make_begun(subagent: Subagent, *, launched: bool, why: str = "") -> Event:
    text = f"{subagent.id} started" if launched else f"{subagent.id} could not start: {why}"
    return Event(
        type=events.SUBAGENT_STARTED,
        subagent=subagent.id,
        summary=shorten(text),
        payload={"launched": launched},
    )
