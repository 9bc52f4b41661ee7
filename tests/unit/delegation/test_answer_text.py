"""Text answers: the words of subagents are quoted and cannot forge other lines."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.delegation import answer_text
from retinue.delegation.result_view import ADVICE, AnswerBudget, shape_row, to_title

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
    text = answer_text.format_result(result(answer=answer, error=error, questions=[question]))
    ours = [line for line in text.splitlines() if not line.startswith(answer_text.QUOTE)]
    assert ours[0] == "[a] completed, 1.0 s"
    assert set(ours[1:]) <= {"workspace: /w", "error:", "question:", "answer:"}


USAGE = {"input_tokens": 50, "output_tokens": 3, "estimated_cost": 0.05}


@pytest.mark.requirement("R205", "R226")
def test_the_cost_of_a_result_is_shown() -> None:
    late = result(status="completed_but_timeout", completion_percentage=100, token_usage=USAGE)
    head = answer_text.format_result(late).splitlines()[0]
    assert head == "[a] completed_but_timeout, 100 %, 1.0 s, 50 + 3 tokens, $0.0500"


ROW = {
    "agentInstance": "a",
    "subagent_id": "a",
    "status": "running",
    "state": "running",
    "phase": "enforcement",
    "completion_percentage": 75,
    "task": "Write\nmuch",
    "workspace": "/t/agents/a/workspace",
    "started_at": None,
    "elapsed_seconds": 2.0,
    "token_usage": {},
}


@pytest.mark.requirement("R181", "R184", "R247")
def test_a_row_is_one_line_and_workspaces_are_named_once() -> None:
    rows = [shape_row(ROW), shape_row(ROW | {"subagent_id": "b", "workspace": "/t/agents/b/w"})]
    assert set(rows[0]) == {
        "subagent_id",
        "status",
        "phase",
        "completion_percentage",
        "task",
        "workspace",
        "elapsed_seconds",
    }
    rows[1]["workspace"] = "/t/agents/b/workspace"
    assert answer_text.format_rows(rows, "").splitlines() == [
        "[a] running, enforcement, 75 %, 2.0 s: Write…",
        "[b] running, enforcement, 75 %, 2.0 s: Write…",
        "workspaces: /t/agents/<id>/workspace",
    ]


def test_a_title_is_the_first_line_and_short() -> None:
    assert to_title("one\ntwo") == "one…" and to_title(" one ") == "one"
    assert len(to_title("x" * 500)) == 80


@pytest.mark.requirement("R16", "R60")
def test_the_files_of_a_failed_subagent_are_listed() -> None:
    names = [f"file-{number}" for number in range(100)]
    (view,) = shape(result(status="timeout", workspace_files=["a\n[b] done", *names]))
    text = answer_text.format_result(view)
    assert "workspace: /w\nfiles it left there:\n  | a\n  | [b] done\n  | file-0\n" in text
    assert "file-18" in text and "file-19" not in text and "  | … 81 more" in text


def test_files_ignored_by_git_are_listed_and_quoted() -> None:
    joined = {"reason": "no_changes", "ignored": ["a\n[b] done", "x.log"]}
    text = answer_text.format_result(result(integration=joined))
    assert "\nnot joined, because git ignores it:\n  | a\n  | [b] done\n  | x.log" in text


def test_quoting_keeps_the_words() -> None:
    assert answer_text.quote_lines("one\r\n\ttwo é") == "  | one\n  | \ttwo é"


def shape(*results: dict[str, Any]) -> list[dict[str, Any]]:
    return AnswerBudget(8000, "fetch").shape_results(results)


def test_the_answers_of_one_call_share_a_budget() -> None:
    long = result(answer="x" * 20_000, log_path="/t/a/runtime", success=True)
    views = shape(*[long] * 10)
    assert sum(len(view["answer"]) for view in views) <= 32_000
    assert all("cut at 3200" in view["answer_rest"] for view in views)
    assert "fetch with job_id a and offset 3200" in views[0]["answer_rest"]
    short = result(answer="y")
    assert len(shape(short, long, short)[1]["answer"]) == 8000


def test_questions_and_output_of_one_call_share_the_budget() -> None:
    failed = result(status="error", success=False, error_output="line\n" * 4000, log_path="/l")
    views = shape(*[failed] * 100)
    assert all(view["error_output"].endswith("line\n") for view in views)
    assert sum(len(view["error_output"]) for view in views) <= 32_000 + 100 * 400
    asking = result(status="blocked", success=False, questions=["why?" * 500] * 10)
    views = shape(*[asking] * 20)
    assert views[-1]["questions"] == ["why?" * 500, "… 9 more questions"]
    assert len(shape(asking)[0]["questions"]) == 5
    assert shape(result(questions=["a?", "b?"]))[0]["questions"] == ["a?", "b?"]


def test_a_view_has_no_empty_fields_and_logs_only_of_failures() -> None:
    (good,) = shape(result(answer="x", log_path="/l"))
    assert "token_usage" not in good and "log_path" not in good and "next" not in good
    (bad,) = shape(result(status="error", success=False, log_path="/l", error="e"))
    assert bad["log_path"] == "/l" and bad["next"] and bad["answer"] is None


def test_each_status_names_the_next_step_in_both_forms() -> None:
    for status, advice in ADVICE.items():
        (view,) = shape(result(status=status))
        assert view.get("next", "") == advice
        assert advice in answer_text.format_result(view)


def test_the_text_of_a_result_has_every_field_of_its_view() -> None:
    (view,) = shape(
        result(
            status="error",
            success=False,
            error="why",
            error_output="printed",
            warning="careful",
            questions=["which?"],
            answer="draft",
            workspace_files=["left.md"],
            completion_percentage=40,
            token_usage=USAGE,
            log_path="/logs",
            agent={"name": "codex", "version": "1.2.3", "resumed": "fresh"},
        )
    )
    text = answer_text.format_result(view)
    shown = ("why", "printed", "careful", "which?", "draft", "left.md", "40 %", "/logs")
    for words in (*shown, "codex 1.2.3"):
        assert words in text
