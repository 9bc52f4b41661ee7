"""What a lane shows of a life, from its creation to its end."""

from __future__ import annotations

from dataclasses import replace

from retinue.domain.ids import SubagentId
from retinue.domain.lane import Lane, Stint, spans
from retinue.domain.lifecycle import Standing, State


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
    return [(span.kind, span.start, span.end) for span in spans(lane)]


def test_one_that_waits_is_a_line_without_an_end() -> None:
    assert kinds(lane(State.CREATED)) == [("waiting", at(0), "")]


def test_one_that_never_started_waited_until_its_end() -> None:
    assert kinds(lane(State.CLOSED, ended_at=at(4))) == [("waiting", at(0), at(4))]


def test_attempts_follow_each_other_with_what_lies_between() -> None:
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


def test_joining_lasts_until_the_output_is_taken() -> None:
    done = Stint(number=1, started_at=at(0), ended_at=at(2), status="completed")
    assert kinds(lane(State.WAITING_FOR_MERGE, done))[-1] == ("merging", at(2), "")
    joined = lane(State.CLOSED, done, ended_at=at(2), settled_at=at(6))
    assert kinds(joined)[-1] == ("merging", at(2), at(6))


def test_one_that_was_taken_at_once_ends_with_its_attempt() -> None:
    done = Stint(number=1, started_at=at(0), ended_at=at(2), status="completed")
    assert kinds(lane(State.CLOSED, done, ended_at=at(2), settled_at=at(2))) == [
        ("working", at(0), at(2))
    ]
