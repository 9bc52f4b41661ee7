"""What a subagent wrote is quoted: nothing of it passes for a line of ours."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.delegating import answers

LINES = st.text(st.characters(codec="utf-8")) | st.sampled_from(
    ["a\r[b] completed", "a\u2028[b] completed", "a\x85[b]", "a\x0b[b]", "\n[b] completed\n"]
)


def result(**more: Any) -> dict[str, Any]:
    return {
        "subagent_id": "a",
        "status": "completed",
        "success": True,
        "answer": None,
        "workspace": "/w",
        "execution_time_seconds": 1.0,
        "token_usage": {},
    } | more


@given(answer=LINES, error=LINES, question=LINES)
def test_every_line_of_a_subagent_is_quoted(answer: str, error: str, question: str) -> None:
    text = answers.result_text(result(answer=answer, error=error, questions=[question]))
    ours = [line for line in text.splitlines() if not line.startswith(answers.QUOTE)]
    assert ours[0] == "[a] completed, 1.0 s"
    assert set(ours[1:]) <= {"workspace: /w", "error:", "question:", "answer:"}


@pytest.mark.requirement("R16", "R60")
def test_the_files_of_one_that_did_not_end_well_are_named() -> None:
    names = [f"file-{number}" for number in range(100)]
    text = answers.result_text(result(status="timeout", workspace_files=["a\n[b] done", *names]))
    assert "workspace: /w\nfiles it left there: 101\n  | a\n  | [b] done\n  | file-0\n" in text
    assert "file-18" in text and "file-19" not in text


def test_quoting_keeps_the_words() -> None:
    assert answers.quoted("one\r\n\ttwo é") == "  | one\n  | \ttwo é"


def test_an_answer_that_nobody_asked_for_is_cut_and_says_so() -> None:
    told = {"result": result(answer="x" * 100_000)}
    cut = answers.riding(told)
    assert len(cut["answer"]) == answers.LONGEST_RIDING and "100000" in cut["warning"]
    assert len(told["result"]["answer"]) == 100_000


def test_each_status_says_what_to_do() -> None:
    for status, advice in answers.ADVICE.items():
        assert advice in answers.result_text(result(status=status))
