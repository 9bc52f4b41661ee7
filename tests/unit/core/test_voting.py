"""Coordination of a team: answers, votes, invalidation, agreement."""

from __future__ import annotations

import pytest

from retinue.core.ids import MemberId
from retinue.core.voting import MAX_ANSWERS, Answer, NotNow, Phase, Table

A, B, C = MemberId("a"), MemberId("b"), MemberId("c")


def answer(table: Table, member: MemberId, text: str = "") -> Table:
    label = table.make_next_label(member)
    return table.record_answer(member, Answer(label=label, text=text or label))


def all_answered() -> Table:
    table = Table.for_members([A, B, C])
    for member in (A, B, C):
        table = answer(table, member)
    return table


def test_one_member_is_done_with_its_first_answer() -> None:
    table = answer(Table.for_members([A]), A)
    assert table.over and table.decide_winner().winner == A
    assert not Table.for_members([A]).over


@pytest.mark.requirement("R227")
def test_the_percentage_is_half_for_answers_and_half_for_votes() -> None:
    table = Table.for_members([A, B])
    seen = [table.percentage]
    for step in (lambda t: answer(t, A), lambda t: answer(t, B)):
        table = step(table)
        seen.append(table.percentage)
    table = table.record_vote(A, "b")
    seen.append(table.percentage)
    assert seen == [0, 25, 50, 75]
    assert table.record_vote(B, "b").decide_winner().percentage == 100


def test_a_new_answer_voids_all_votes() -> None:
    table = all_answered().record_vote(A, "b").record_vote(B, "b")
    again = answer(table, C)
    assert not again.votes and again.must_act(A) and again.must_act(B)
    assert again.percentage == 50


def test_the_team_has_agreed_once_all_members_voted_on_current_answers() -> None:
    table = all_answered().record_vote(A, "b").record_vote(B, "agent2")
    assert not table.over
    table = table.record_vote(C, "agent1.1")
    assert table.over and table.decide_winner().winner == B
    assert table.labelled_votes == {"agent2.1": 2, "agent1.1": 1}


def test_tied_votes_go_to_the_first_registered_member() -> None:
    table = all_answered().record_vote(A, "c").record_vote(B, "b").record_vote(C, "a")
    assert table.decide_winner().winner == A


@pytest.mark.requirement("R243")
def test_the_phases_follow_each_other() -> None:
    table = Table.for_members([A, B])
    assert table.phase is Phase.INITIAL_ANSWER
    table = answer(answer(table, A), B)
    assert table.phase is Phase.ENFORCEMENT
    assert table.record_vote(A, "a").record_vote(B, "a").decide_winner().phase is Phase.PRESENTATION


def test_a_member_that_left_is_not_waited_for_and_keeps_its_answer() -> None:
    table = all_answered().record_vote(A, "c").record_vote(B, "c").record_departure(C, "crashed")
    assert table.over and table.decide_winner().winner == C
    assert table.find_seat(C).status == "left" and not table.must_act(C)


def test_a_member_that_left_without_an_answer_has_failed() -> None:
    table = answer(Table.for_members([A, B]).record_departure(B, "crashed"), A)
    assert table.find_seat(B).status == "failed"
    assert table.phase is Phase.ENFORCEMENT


def test_a_team_without_members_ends_without_a_decision() -> None:
    table = Table.for_members([A, B]).record_departure(A, "x").record_departure(B, "y")
    assert table.over and table.decide_winner().winner is None


@pytest.mark.requirement("R179")
def test_without_refinement_only_the_first_answer_counts() -> None:
    empty = Table.for_members([A, B], refine=False)
    assert not empty.over and not empty.record_departure(A, "crashed").over
    table = answer(empty, B)
    assert table.over and table.agreed and table.decide_winner().winner == B
    assert not table.must_act(A)
    for late in (A, B):
        with pytest.raises(NotNow, match="first answer counts"):
            answer(table, late)
    gone = empty.record_departure(A, "crashed").record_departure(B, "crashed")
    assert gone.over and not gone.agreed


def test_an_invalid_vote_is_refused_with_the_valid_choices() -> None:
    table = answer(Table.for_members([A, B]), A)
    with pytest.raises(NotNow, match="one of: a"):
        table.record_vote(B, "b")
    with pytest.raises(NotNow, match="answer first"):
        Table.for_members([A, B]).record_vote(A, "b")


def test_the_number_of_answers_is_limited() -> None:
    table = Table.for_members([A, B])
    for _ in range(MAX_ANSWERS):
        table = answer(table, A)
    assert table.find_seat(A).current is not None and table.find_seat(A).current.label == "agent1.4"
    with pytest.raises(NotNow, match="vote"):
        answer(table, A)
