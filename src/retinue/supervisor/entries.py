"""The events of a subagent's life, worded once."""

from __future__ import annotations

from retinue.domain import event as events
from retinue.domain.ending import Ending, EndKind
from retinue.domain.event import Event, shorten
from retinue.domain.join import POLICY, JoinFailed
from retinue.domain.lifecycle import JOIN, State
from retinue.domain.recovery import Refusal
from retinue.domain.result import Result, Status
from retinue.domain.subagent import Attempt, Subagent
from retinue.domain.verdict import FailureKind, Next, close_reason, failure_kind


def started(subagent: Subagent, attempt: Attempt) -> list[Event]:
    """A process is up for this attempt; the first one also starts the subagent.

    The payload names that process for good, so that it is found again by the log alone.
    """
    began = Event(
        type=events.STARTED,
        subagent=subagent.id,
        attempt=attempt.number,
        summary=f"{subagent.id} attempt {attempt.number} is up",
        payload={
            "pid": attempt.pid,
            "boot_id": attempt.boot_id,
            "start_ticks": attempt.start_ticks,
            "started_monotonic_ms": attempt.started_monotonic_ms,
        },
    )
    first = subagent.standing.state is State.CREATED
    return [_begun(subagent, launched=True), began] if first else [began]


def never_launched(subagent: Subagent, reason: str) -> list[Event]:
    """One that never had a process has started all the same, and says how."""
    if subagent.standing.state is not State.CREATED:
        return []
    return [_begun(subagent, launched=False, why=reason)]


def attempt_ended(
    subagent: Subagent, attempt: int, result: Result, ending: Ending, then: Next
) -> list[Event]:
    kind = {
        Status.COMPLETED: events.COMPLETED,
        Status.COMPLETED_BUT_TIMEOUT: events.COMPLETED,
        Status.BLOCKED: events.BLOCKED,
        Status.CANCELLED: events.CANCELLED,
    }.get(result.status, events.FAILED)
    outcome = kind.removeprefix("agent.")
    details = _particulars(subagent, kind, result, ending)
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
                "ran": ending.kind is not EndKind.NEVER_RAN,
                "next": then.value,
            },
        ),
    ]


def _particulars(
    subagent: Subagent, kind: str, result: Result, ending: Ending
) -> dict[str, object]:
    """What an attempt's own event says of its end."""
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


def blocked(subagent: Subagent, attempt: int, result: Result) -> Event:
    gate = subagent.gate
    return Event(
        type=events.GATE_BLOCKED,
        subagent=subagent.id,
        attempt=attempt,
        summary=shorten(f"gate {gate} waits for an answer: {'; '.join(result.questions)}"),
        payload={"gateId": gate, "questions": list(result.questions)},
    )


def answered(subagent: Subagent, by: str, message: str) -> Event:
    gate = subagent.gate
    return Event(
        type=events.GATE_ANSWERED,
        subagent=subagent.id,
        attempt=subagent.standing.attempt,
        by=by,
        summary=shorten(f"gate {gate} answered: {message}"),
        payload={"gateId": gate, "answer": message},
    )


def settled(subagent: Subagent, result: Result, ending: Ending | None) -> Event:
    """The subagent has left `running`, for good."""
    if result.success:
        return Event(
            type=events.SUBAGENT_WAITING,
            subagent=subagent.id,
            summary=shorten(f"{subagent.id} delivered: {result.answer or ''}"),
            payload={"status": result.status.value} | _awaits(subagent),
        )
    return Event(
        type=events.SUBAGENT_FAILED,
        subagent=subagent.id,
        summary=shorten(f"{subagent.id} failed: {result.error or result.status.value}"),
        payload={
            "status": result.status.value,
            "failure_kind": failure_kind(result, ending).value,
            "reason": result.error,
            "close_reason": close_reason(result, ending, subagent.standing),
        },
    )


def _awaits(subagent: Subagent) -> dict[str, object]:
    """Who joins the output, where more has to happen to it than to be accepted."""
    outputs = subagent.contract.outputs
    if not outputs.joined_later:
        return {}
    return {
        "integration": outputs.integration,
        "awaits": JOIN if outputs.in_order else "parent",
    }


def accepted(subagent: Subagent) -> Event:
    return Event(
        type=events.OUTPUT_ACCEPTED,
        subagent=subagent.id,
        summary=f"{subagent.id}: output accepted as it is",
        payload={"integration": subagent.contract.outputs.integration},
    )


def not_joined(
    subagent: Subagent, failure: JoinFailed, kept: dict[str, object], by: str = "steward"
) -> Event:
    """Output that did not become part of anything: a failure of the subagent, not a warning."""
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
        },
    )


def closed(subagent: Subagent, final_status: str, reason: str, by: str = "steward") -> Event:
    return Event(
        type=events.SUBAGENT_CLOSED,
        subagent=subagent.id,
        by=by,
        summary=f"{subagent.id} closed: {final_status} ({reason})",
        payload={"final_status": final_status, "close_reason": reason},
    )


def closed_by_itself(subagent: Subagent, final_status: str, reason: str) -> list[Event]:
    """Its closing, where that follows from its end; else someone closes it later."""
    follows = subagent.contract.execution.close_on_completion
    return [closed(subagent, final_status, reason)] if follows else []


def delegated(parent: Subagent, children: int) -> Event:
    depth = parent.contract.depth + 1
    return Event(
        type=events.DELEGATION_GRANTED,
        subagent=parent.id,
        attempt=parent.standing.attempt,
        by="child",
        summary=f"{parent.id} delegates to {children} of its own, at depth {depth}",
        payload={"depth": depth, "children": children},
    )


def delegation_denied(parent: Subagent, reason: str, **more: object) -> Event:
    """`more` may say by whom and how, or the how-many-th time it was: not every one is told."""
    depth = parent.contract.depth + 1
    return Event(
        type=events.DELEGATION_DENIED,
        subagent=parent.id,
        attempt=parent.standing.attempt,
        by="child",
        summary=shorten(f"{parent.id} may not delegate: {reason}"),
        payload={"depth": depth, "reason": shorten(reason, 1000), **more},
    )


def refused(subagent: Subagent, attempt: int, refusal: Refusal) -> Event:
    """What a member was denied: a tool, or to delegate by one."""
    if refusal.delegation:
        who = {"member": refusal.member, "tool": refusal.tool}
        return delegation_denied(subagent, refusal.reason, **who)
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


def message_sent(subagent: Subagent, by: str, text: str) -> Event:
    return Event(
        type=events.MESSAGE_SENT,
        subagent=subagent.id,
        attempt=subagent.standing.attempt,
        by=by,
        summary=shorten(f"message to {subagent.id}: {text}"),
        payload={"message": shorten(text, 4000)},
    )


def cancel_requested(subagent: Subagent, by: str, reason: str) -> Event:
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


def cancelled_without_process(subagent: Subagent, by: str, reason: str) -> list[Event]:
    """The end of one that waits: in the queue, or for an answer."""
    attempt = subagent.standing.attempt
    return [
        *never_launched(subagent, "cancelled while pending"),
        Event(
            type=events.CANCELLED,
            subagent=subagent.id,
            attempt=attempt,
            by=by,
            summary=shorten(f"{subagent.id} cancelled by {by}: {reason}"),
            payload={"reason": reason, "signals": []},
        ),
    ]


def _begun(subagent: Subagent, *, launched: bool, why: str = "") -> Event:
    text = f"{subagent.id} started" if launched else f"{subagent.id} could not start: {why}"
    return Event(
        type=events.SUBAGENT_STARTED,
        subagent=subagent.id,
        summary=shorten(text),
        payload={"launched": launched},
    )
