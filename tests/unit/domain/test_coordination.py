"""A team comes to one answer: answers, votes, invalidation, agreement."""

from __future__ import annotations

import pytest

from retinue.domain.coordination import MAX_ANSWERS, Answer, NotNow, Table
from retinue.domain.ids import MemberId
from retinue.domain.team import Phase

A, B, C = MemberId("a"), MemberId("b"), MemberId("c")


def answer(table: Table, member: MemberId, text: str = "") -> Table:
    label = table.next_label(member)
    return table.answered(member, Answer(label=label, text=text or label))


def all_answered() -> Table:
    table = Table.of([A, B, C])
    for member in (A, B, C):
        table = answer(table, member)
    return table


def test_one_member_is_done_with_its_first_answer() -> None:
    table = answer(Table.of([A]), A)
    assert table.over and table.decided().winner == A
    assert not Table.of([A]).over


@pytest.mark.requirement("R227")
def test_the_percentage_is_half_for_answers_and_half_for_votes() -> None:
    table = Table.of([A, B])
    seen = [table.percentage]
    for step in (lambda t: answer(t, A), lambda t: answer(t, B)):
        table = step(table)
        seen.append(table.percentage)
    table = table.voted(A, "b")
    seen.append(table.percentage)
    assert seen == [0, 25, 50, 75]
    assert table.voted(B, "b").decided().percentage == 100


def test_a_new_answer_makes_every_vote_void() -> None:
    table = all_answered().voted(A, "b").voted(B, "b")
    again = answer(table, C)
    assert not again.votes and again.must_act(A) and again.must_act(B)
    assert again.percentage == 50


def test_the_team_has_agreed_once_everybody_voted_on_what_there_is() -> None:
    table = all_answered().voted(A, "b").voted(B, "agent2")
    assert not table.over
    table = table.voted(C, "agent1.1")
    assert table.over and table.decided().winner == B
    assert table.labelled_votes == {"agent2.1": 2, "agent1.1": 1}


def test_tied_votes_fall_to_the_first_registered() -> None:
    table = all_answered().voted(A, "c").voted(B, "b").voted(C, "a")
    assert table.decided().winner == A


@pytest.mark.requirement("R243")
def test_the_phases_follow_each_other() -> None:
    table = Table.of([A, B])
    assert table.phase is Phase.INITIAL_ANSWER
    table = answer(answer(table, A), B)
    assert table.phase is Phase.ENFORCEMENT
    assert table.voted(A, "a").voted(B, "a").decided().phase is Phase.PRESENTATION


def test_who_left_is_not_waited_for_and_keeps_its_answer() -> None:
    table = all_answered().voted(A, "c").voted(B, "c").left(C, "crashed")
    assert table.over and table.decided().winner == C
    assert table.seat(C).status == "left" and not table.must_act(C)


def test_a_member_that_left_without_an_answer_has_failed() -> None:
    table = answer(Table.of([A, B]).left(B, "crashed"), A)
    assert table.seat(B).status == "failed"
    assert table.phase is Phase.ENFORCEMENT


def test_nobody_left_is_the_end_without_a_winner() -> None:
    table = Table.of([A, B]).left(A, "x").left(B, "y")
    assert table.over and table.decided().winner is None


@pytest.mark.requirement("R179")
def test_without_refinement_the_first_answer_that_is_given_is_all() -> None:
    empty = Table.of([A, B], refine=False)
    assert not empty.over and not empty.left(A, "crashed").over
    table = answer(empty, B)
    assert table.over and table.agreed and table.decided().winner == B
    assert not table.must_act(A)
    for late in (A, B):
        with pytest.raises(NotNow, match="first answer counts"):
            answer(table, late)
    gone = empty.left(A, "crashed").left(B, "crashed")
    assert gone.over and not gone.agreed


def test_a_vote_for_nobody_is_told_who_there_is() -> None:
    table = answer(Table.of([A, B]), A)
    with pytest.raises(NotNow, match="one of: a"):
        table.voted(B, "b")
    with pytest.raises(NotNow, match="answer first"):
        Table.of([A, B]).voted(A, "b")


def test_answers_come_to_an_end() -> None:
    table = Table.of([A, B])
    for _ in range(MAX_ANSWERS):
        table = answer(table, A)
    assert table.seat(A).current is not None and table.seat(A).current.label == "agent1.4"
    with pytest.raises(NotNow, match="vote"):
        answer(table, A)
