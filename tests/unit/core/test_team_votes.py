"""The chosen answer of a team, and its progress."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.ids import MemberId
from retinue.core.voting import Member, choose_answer, compute_progress, count_votes

A, B, C = MemberId("a"), MemberId("b"), MemberId("c")


def team(*members: tuple[str, str | None, str | None]) -> list[Member]:
    return [
        Member(id=MemberId(id), answer=answer, vote=MemberId(vote) if vote else None)
        for id, answer, vote in members
    ]


@pytest.mark.requirement("R2", "R6", "R57")
def test_the_most_voted_answer_is_chosen() -> None:
    members = team(("a", "one", "b"), ("b", "two", "b"), ("c", "three", "a"))
    chosen = choose_answer(members, count_votes(members))
    assert chosen is not None
    assert chosen.id == B


@pytest.mark.requirement("R7")
def test_tied_votes_choose_the_first_registered_member() -> None:
    members = team(("b", "two", "a"), ("a", "one", "b"), ("c", "three", "c"))
    chosen = choose_answer(members, count_votes(members))
    assert chosen is not None
    assert chosen.id == B


@pytest.mark.requirement("R9", "R58")
def test_without_votes_the_first_registered_answer_is_chosen() -> None:
    members = team(("a", None, None), ("b", "two", None), ("c", "three", None))
    chosen = choose_answer(members, {})
    assert chosen is not None
    assert chosen.id == B


@pytest.mark.requirement("R11", "R56")
def test_a_member_without_an_answer_never_wins() -> None:
    members = team(("a", None, "a"), ("b", "two", None))
    chosen = choose_answer(members, {A: 9})
    assert chosen is not None
    assert chosen.id == B
    assert choose_answer(team(("a", None, "a")), {A: 9}) is None
    assert choose_answer([], {}) is None


def test_votes_count_only_for_current_answers() -> None:
    members = team(("a", None, "b"), ("b", "two", "a"), ("c", "three", "nobody"))
    assert count_votes(members) == {B: 1}


@pytest.mark.requirement("R227")
@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([], 0),
        ([("a", None, None), ("b", None, None)], 0),
        ([("a", "one", None), ("b", None, None)], 25),
        ([("a", "one", None), ("b", "two", None)], 50),
        ([("a", "one", "b"), ("b", "two", None)], 75),
        ([("a", "one", "b"), ("b", "two", "b")], 100),
        ([("a", "one", None), ("b", "two", None), ("c", None, None)], 33),
        ([("a", "one", "b"), ("b", None, None)], 25),  # a vote for no current answer
    ],
)
def test_each_answer_and_each_vote_is_worth_half_a_member(
    members: list[tuple[str, str | None, str | None]], expected: int
) -> None:
    assert compute_progress(team(*members)) == expected


NAMES = st.sampled_from(["a", "b", "c", "d"])


@given(
    st.lists(
        st.tuples(NAMES, st.none() | st.text(), st.none() | NAMES),
        unique_by=lambda member: member[0],
    )
)
def test_progress_is_a_percentage_and_the_choice_has_an_answer(
    members: list[tuple[str, str | None, str | None]],
) -> None:
    made = team(*members)
    assert 0 <= compute_progress(made) <= 100
    chosen = choose_answer(made, count_votes(made))
    assert (chosen is None) == all(member.answer is None for member in made)
    assert chosen is None or chosen.answer is not None
