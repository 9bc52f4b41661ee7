"""Recovery of a stopped subagent's answer."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.ids import MemberId
from retinue.core.result import Salvage, Testimony, answer_text, recover
from retinue.core.voting import Phase

A, B, C = MemberId("a"), MemberId("b"), MemberId("c")
ABC = (A, B, C)
ANSWERS = {A: "one", B: "two", C: "three"}
NOTHING = Salvage(answer=None, complete=False)


@dataclass(frozen=True)
class Rung:
    name: str
    testimony: Testimony | None
    answers: dict[MemberId, str]
    expected: Salvage


def voting(**votes: int) -> Testimony:
    counts = {MemberId(member): count for member, count in votes.items()}
    return Testimony(phase=Phase.ENFORCEMENT, members=ABC, votes=counts)


def presenting(winner: MemberId | None, **votes: int) -> Testimony:
    counts = {MemberId(member): count for member, count in votes.items()}
    return Testimony(phase=Phase.PRESENTATION, winner=winner, members=ABC, votes=counts)


LADDER = [
    Rung(
        "presentation: the winner's answer is final, whatever the votes say",
        presenting(B, a=3),
        ANSWERS,
        Salvage(answer="two", complete=True),
    ),
    Rung(
        "presentation without a winner: most votes, not final",
        presenting(None, c=2, a=1),
        ANSWERS,
        Salvage(answer="three", complete=False),
    ),
    Rung(
        "presentation, winner's answer unreadable: most votes, not final",
        presenting(B, b=3, c=1),
        {A: "one", C: "three"},
        Salvage(answer="three", complete=False),
    ),
    Rung(
        "presentation, winner not registered: most votes, not final",
        presenting(MemberId("stranger"), c=1),
        {**ANSWERS, MemberId("stranger"): "planted"},
        Salvage(answer="three", complete=False),
    ),
    Rung("enforcement: most votes", voting(a=1, c=2), ANSWERS, Salvage(answer="three")),
    Rung(
        "enforcement: tied votes fall to registration order",
        voting(c=2, b=2),
        ANSWERS,
        Salvage(answer="two"),
    ),
    Rung(
        "enforcement with a winner is still not final",
        Testimony(phase=Phase.ENFORCEMENT, winner=C, members=ABC),
        ANSWERS,
        Salvage(answer="one"),
    ),
    Rung("no votes: first registered", voting(), ANSWERS, Salvage(answer="one")),
    Rung(
        "no votes, the first has no answer: the next registered one",
        voting(),
        {C: "three", B: "two"},
        Salvage(answer="two"),
    ),
    Rung(
        "the most voted has no answer: the next",
        voting(a=3, c=1),
        {B: "two", C: "three"},
        Salvage(answer="three"),
    ),
    Rung("a blank answer is none", voting(), {A: " \n", B: "two"}, Salvage(answer="two")),
    Rung(
        "no phase at all: answers still count",
        Testimony(members=ABC),
        {B: "two"},
        Salvage(answer="two"),
    ),
    Rung("no answers", presenting(A, a=3), {}, NOTHING),
    Rung("no testimony", None, ANSWERS, NOTHING),
    Rung("empty testimony", Testimony(problem="torn"), ANSWERS, NOTHING),
]


@pytest.mark.requirement(
    "R1", "R3", "R6", "R7", "R8", "R9", "R10", "R11", "R56", "R57", "R58", "R64"
)
@pytest.mark.parametrize("rung", LADDER, ids=lambda rung: rung.name)
def test_recovery_takes_the_best_available_answer(rung: Rung) -> None:
    assert recover(rung.testimony, rung.answers, None) == rung.expected


@pytest.mark.requirement("R60")
@pytest.mark.parametrize("rung", LADDER, ids=lambda rung: rung.name)
def test_a_final_answer_is_complete_whatever_the_team_said(rung: Rung) -> None:
    salvage = recover(rung.testimony, rung.answers, "done\n")
    assert salvage == Salvage(answer="done", complete=True)


@pytest.mark.parametrize("blank", ["", " ", "\n\n", "\t \r\n"])
def test_a_blank_final_answer_is_none(blank: str) -> None:
    assert answer_text(blank) is None
    assert recover(None, {}, blank) == NOTHING


def test_an_answer_keeps_everything_but_its_trailing_line_ends() -> None:
    assert answer_text("  a\x1b[0m\x00\u2028b \r\n\n") == "  a\x1b[0m\x00\u2028b "


IDS = st.sampled_from([MemberId(name) for name in ("a", "b", "c", "d", "e")])


@given(
    st.builds(
        Testimony,
        phase=st.none() | st.sampled_from(Phase),
        winner=st.none() | IDS,
        members=st.lists(IDS, unique=True).map(tuple),
        votes=st.dictionaries(IDS, st.integers(0, 5)),
    ),
    st.dictionaries(IDS, st.text(max_size=3)),
)
def test_recovery_is_deterministic_and_ignores_unregistered_members(
    testimony: Testimony, answers: dict[MemberId, str]
) -> None:
    salvage = recover(testimony, answers, None)
    assert salvage == recover(testimony, dict(reversed(answers.items())), None)
    if salvage.answer is None:
        assert salvage == NOTHING
        assert all(answer_text(answers.get(member)) is None for member in testimony.members)
        return
    assert salvage.answer in {answer_text(answers.get(each)) for each in testimony.members}
    assert not salvage.complete or testimony.phase is Phase.PRESENTATION
