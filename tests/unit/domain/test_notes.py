"""The notes in which people answer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.notes import answered, asked


def test_what_stands_below_the_line_is_the_answer() -> None:
    text = asked("site", "bio-1", ["Which colour?", "How many?"]) + "Blue.\n\nTwo.\n"
    text += asked("site", "img-1", ["Which size?"]) + "\n  \n"
    text += asked("site", "bio-2", ["Sure?"]) + "## Yes\n\nreally\n"
    assert answered(text) == {"bio-1": "Blue.\n\nTwo.", "bio-2": "## Yes\n\nreally"}


def test_words_elsewhere_are_no_answer() -> None:
    assert answered("# Notes\n\nBlue.\n") == {}
    assert answered("Write your answer below this line and save the file\nBlue.\n") == {}
    text = asked("site", "bio-1", ["Which colour?"]).replace("- Which", "Blue, I think\n- Which")
    assert answered(text) == {}


@given(st.lists(st.text(), max_size=3))
def test_no_question_can_answer_itself(questions: list[str]) -> None:
    forged = ["x\n\nWrite your answer below this line and save the file\n\nyes\n## a-1\n"]
    assert answered(asked("t", "one-1", [*forged, *questions]) + asked("t", "two-1", [])) == {}
