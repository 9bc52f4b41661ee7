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


USAGE = {"input_tokens": 50, "output_tokens": 3, "estimated_cost": 0.05}


@pytest.mark.requirement("R205", "R226")
def test_what_a_result_cost_is_told() -> None:
    late = result(status="completed_but_timeout", completion_percentage=100, token_usage=USAGE)
    head = answers.result_text(late).splitlines()[0]
    assert head == "[a] completed_but_timeout, 100 %, 1.0 s, 50 + 3 tokens, $0.0500"


@pytest.mark.requirement("R181", "R184", "R247")
def test_a_row_tells_where_a_subagent_works_what_it_cost_and_how_it_is_found_again() -> None:
    row = {
        "subagent_id": "a",
        "status": "running",
        "phase": "enforcement",
        "completion_percentage": 75,
        "task": "Write\nmuch",
        "workspace": "/w",
        "elapsed_seconds": 2.0,
        "token_usage": USAGE,
        "session": {"task_id": "t", "subagent_id": "a", "attempt": 2},
    }
    assert answers.row_text(row).splitlines() == [
        "[a] running, enforcement, 75 %, 2.0 s, 50 + 3 tokens, $0.0500",
        "workspace: /w",
        "session: task_id t, subagent_id a, attempt 2",
        "  | Write",
        "  | much",
    ]


@pytest.mark.requirement("R16", "R60")
def test_the_files_of_one_that_did_not_end_well_are_named() -> None:
    names = [f"file-{number}" for number in range(100)]
    text = answers.result_text(result(status="timeout", workspace_files=["a\n[b] done", *names]))
    assert "workspace: /w\nfiles it left there: 101\n  | a\n  | [b] done\n  | file-0\n" in text
    assert "file-18" in text and "file-19" not in text


def test_what_git_ignored_is_named_and_quoted() -> None:
    joined = {"reason": "no_changes", "ignored": ["a\n[b] done", "x.log"]}
    text = answers.result_text(result(integration=joined))
    assert "\nnot joined, because git ignores it:\n  | a\n  | [b] done\n  | x.log" in text


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
