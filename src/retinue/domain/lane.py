"""A subagent's life as a line in time: what it was in, from when to when."""

from __future__ import annotations

from dataclasses import dataclass

from retinue.domain.ids import SubagentId
from retinue.domain.lifecycle import Standing, State

WAITING, WORKING, MERGING = "waiting", "working", "merging"
BLOCKED, RETRYING = "blocked", "retrying"  # between two attempts


@dataclass(frozen=True, kw_only=True)
class Stint:
    """One attempt, in time. Moments are stamps of one form: as texts they are in order."""

    number: int
    started_at: str
    ended_at: str = ""
    status: str = ""  # of what it would have given the parent


@dataclass(frozen=True, kw_only=True)
class Lane:
    id: SubagentId
    step_idx: int
    title: str
    standing: Standing
    created_at: str
    ended_at: str = ""
    settled_at: str = ""  # when its parent last had something to see
    stints: tuple[Stint, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Span:
    kind: str
    start: str
    end: str = ""  # empty: it goes on
    attempt: int = 0
    status: str = ""


def spans(lane: Lane) -> list[Span]:
    """What the subagent passed through, without gaps, the first begun at its creation."""
    if not lane.stints:
        return [Span(kind=WAITING, start=lane.created_at, end=_end_without_attempt(lane))]
    found = []
    since, between = lane.created_at, WAITING
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
            )
        )
        since = stint.ended_at
        between = BLOCKED if stint.status == "blocked" else RETRYING
    if since:
        found += _after_the_last(lane, since, between)
    return found


def _after_the_last(lane: Lane, since: str, between: str) -> list[Span]:
    """What follows the end of the newest attempt."""
    state = lane.standing.state
    if state is State.WAITING_FOR_MERGE:
        return [Span(kind=MERGING, start=since)]
    if state is State.RUNNING:
        return [Span(kind=between, start=since)]
    until = max(lane.settled_at, lane.ended_at)
    if until > since:  # it was joined later than it ended, or nobody answered it
        kind = BLOCKED if between == BLOCKED else MERGING
        return [Span(kind=kind, start=since, end=until)]
    return []


def _end_without_attempt(lane: Lane) -> str:
    return "" if lane.standing.state is State.CREATED else lane.ended_at or lane.settled_at
