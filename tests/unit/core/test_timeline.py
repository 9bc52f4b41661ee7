"""Periods in a subagent's timeline."""

from __future__ import annotations

from dataclasses import replace

from retinue.core.ids import SubagentId
from retinue.core.lifecycle import Standing, State
from retinue.core.timeline import Lane, Stint, build_spans


def at(second: int) -> str:
    return f"2026-01-01T00:00:{second:02}.000Z"


def lane(state: State, *stints: Stint, **more: str) -> Lane:
    return Lane(
        id=SubagentId("one"),
        step_idx=0,
        title="",
        standing=Standing(state=state),
        created_at=at(0),
        stints=stints,
        **more,
    )


def kinds(lane: Lane) -> list[tuple[str, str, str]]:
    return [(span.kind, span.start, span.end) for span in build_spans(lane)]


def test_a_pending_subagent_has_one_open_period() -> None:
    assert kinds(lane(State.CREATED)) == [("waiting", at(0), "")]


def test_a_subagent_that_never_started_waited_until_its_end() -> None:
    assert kinds(lane(State.CLOSED, ended_at=at(4))) == [("waiting", at(0), at(4))]


def test_attempts_and_the_periods_between_them_have_no_gaps() -> None:
    first = Stint(number=1, started_at=at(1), ended_at=at(3), status="error")
    second = Stint(number=2, started_at=at(4))
    assert kinds(lane(State.RUNNING, first, second)) == [
        ("waiting", at(0), at(1)),
        ("working", at(1), at(3)),
        ("retrying", at(3), at(4)),
        ("working", at(4), ""),
    ]


def test_a_question_lasts_until_it_is_answered() -> None:
    asked = Stint(number=1, started_at=at(0), ended_at=at(2), status="blocked")
    open_ = lane(State.RUNNING, asked)
    assert kinds(open_)[-1] == ("blocked", at(2), "")
    answered = replace(open_, stints=(asked, Stint(number=2, started_at=at(9))))
    assert ("blocked", at(2), at(9)) in kinds(answered)
    never = lane(State.CLOSED, asked, settled_at=at(7))
    assert kinds(never)[-1] == ("blocked", at(2), at(7))


def test_merging_lasts_until_the_output_is_joined() -> None:
    done = Stint(number=1, started_at=at(0), ended_at=at(2), status="completed")
    assert kinds(lane(State.WAITING_FOR_MERGE, done))[-1] == ("merging", at(2), "")
    joined = lane(State.CLOSED, done, ended_at=at(2), settled_at=at(6))
    assert kinds(joined)[-1] == ("merging", at(2), at(6))


def test_a_subagent_accepted_at_once_ends_with_its_attempt() -> None:
    done = Stint(number=1, started_at=at(0), ended_at=at(2), status="completed")
    assert kinds(lane(State.CLOSED, done, ended_at=at(2), settled_at=at(2))) == [
        ("working", at(0), at(2))
    ]
