"""Timeline of a subagent: the periods in which it waited, worked, was blocked or was merged."""

from __future__ import annotations

from dataclasses import dataclass, field

from retinue.core.budget import Spending
from retinue.core.ids import SubagentId
from retinue.core.lifecycle import Standing, State

WAITING, WORKING, MERGING = "waiting", "working", "merging"
BLOCKED, RETRYING = "blocked", "retrying"  # between two attempts


@dataclass(frozen=True, kw_only=True)
class Stint:
    """One attempt. All time stamps have the same format, so they compare as text."""

    number: int
    started_at: str
    ended_at: str = ""
    status: str = ""  # of the attempt's own result
    seconds: float | None = None  # run time according to its result
    node: str = ""  # the machine that ran it; empty: this one


@dataclass(frozen=True, kw_only=True)
class Lane:
    """A subagent as a row of the page: what it is, what it spent and when it did what."""

    id: SubagentId
    step_idx: int
    title: str
    standing: Standing
    created_at: str
    ended_at: str = ""
    settled_at: str = ""  # when it last settled
    stints: tuple[Stint, ...] = ()
    parent: str = ""  # the subagent that delegated it
    agent: str = ""  # its models or the name of its command
    answer: str = ""  # the beginning of its answer
    error: str = ""  # the beginning of why there is no better one
    spending: Spending = field(default_factory=Spending)
    unpriced: bool = False  # whether it asked models without a known price


@dataclass(frozen=True, kw_only=True)
class Span:
    kind: str
    start: str
    end: str = ""  # empty: it continues
    attempt: int = 0
    status: str = ""
    seconds: float | None = None  # of an attempt: run time without launch and late detection
    node: str = ""


def build_spans(lane: Lane) -> list[Span]:
    """Return the periods of a subagent's life without gaps, starting at its creation."""
    if not lane.stints:
        return [Span(kind=WAITING, start=lane.created_at, end=_end_without_attempt(lane))]
    found = []
    since = lane.created_at
    between = WAITING
    for stint in lane.stints:
        if since and stint.started_at > since:
            found.append(Span(kind=between, start=since, end=stint.started_at))
        found.append(
            Span(
                kind=WORKING,
                start=stint.started_at,
                end=stint.ended_at,
                attempt=stint.number,
                status=stint.status,
                seconds=stint.seconds,
                node=stint.node,
            )
        )
        since = stint.ended_at
        between = BLOCKED if stint.status == "blocked" else RETRYING
    if since:
        found += _build_last_span(lane, since, between)
    return found


def _build_last_span(lane: Lane, since: str, between: str) -> list[Span]:
    """Return the period after the end of the newest attempt, if any."""
    state = lane.standing.state
    if state is State.WAITING_FOR_MERGE:
        return [Span(kind=BLOCKED if lane.standing.blocked else MERGING, start=since)]
    if state is State.RUNNING:
        return [Span(kind=between, start=since)]
    until = max(lane.settled_at, lane.ended_at)
    # It was joined after it had ended, or its questions stayed unanswered.
    if until > since:
        kind = BLOCKED if between == BLOCKED else MERGING
        return [Span(kind=kind, start=since, end=until)]
    return []


def _end_without_attempt(lane: Lane) -> str:
    return "" if lane.standing.state is State.CREATED else lane.ended_at or lane.settled_at
