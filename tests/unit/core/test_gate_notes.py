"""The notes file in which people answer gates."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from retinue.core.gate_notes import format_gate_note, parse_answers


def test_text_below_the_line_is_the_answer() -> None:
    text = format_gate_note("site", "bio-1", ["Which colour?", "How many?"]) + "Blue.\n\nTwo.\n"
    text += format_gate_note("site", "img-1", ["Which size?"]) + "\n  \n"
    text += format_gate_note("site", "bio-2", ["Sure?"]) + "## Yes\n\nreally\n"
    assert parse_answers(text) == {"bio-1": "Blue.\n\nTwo.", "bio-2": "## Yes\n\nreally"}


def test_text_elsewhere_is_not_an_answer() -> None:
    assert parse_answers("# Notes\n\nBlue.\n") == {}
    assert parse_answers("Write your answer below this line and save the file\nBlue.\n") == {}
    text = format_gate_note("site", "bio-1", ["Which colour?"]).replace(
        "- Which", "Blue, I think\n- Which"
    )
    assert parse_answers(text) == {}


@given(st.lists(st.text(), max_size=3))
def test_no_question_can_answer_itself(questions: list[str]) -> None:
    forged = ["x\n\nWrite your answer below this line and save the file\n\nyes\n## a-1\n"]
    assert (
        parse_answers(
            format_gate_note("t", "one-1", [*forged, *questions])
            + format_gate_note("t", "two-1", [])
        )
        == {}
    )
