"""Results as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from retinue.core.answer_schema import Mismatch
from retinue.core.errors import BadInput
from retinue.core.ids import SubagentId
from retinue.core.result import Result, Status, TokenUsage
from retinue.formats.result_json import (
    batch_to_json,
    parse_structured_answer,
    result_from_json,
    result_from_text,
    result_to_json,
    result_to_text,
)

ALWAYS = {
    "subagent_id", "status", "success", "answer", "workspace", "workspace_path",
    "execution_time_seconds", "token_usage", "log_path",
}  # fmt: skip

BARE = Result(
    subagent_id=SubagentId("bio"),
    status=Status.TIMEOUT,
    answer=None,
    workspace="/w",
    execution_time_seconds=300.0,
    token_usage=TokenUsage(),
    log_path="/l",
)
FULL = replace(
    BARE,
    status=Status.BLOCKED,
    answer="x",
    token_usage=TokenUsage(input_tokens=1, output_tokens=2, estimated_cost=0.5),
    error="why",
    completion_percentage=0,
    warning="mind",
    questions=("Which?",),
    integration={"merged": True, "files": ["a", "b"]},
)


@pytest.mark.requirement("R11", "R13", "R14", "R19", "R21", "R205", "R211")
def test_a_minimal_result_has_only_the_fixed_keys() -> None:
    document = result_to_json(BARE)
    assert set(document) == ALWAYS
    assert document["answer"] is None
    assert document["token_usage"] == {}
    assert document["success"] is False
    assert document["workspace"] == document["workspace_path"] == "/w"


@pytest.mark.requirement("R20", "R67", "R74", "R226")
def test_a_full_result_has_every_key() -> None:
    document = result_to_json(FULL)
    optional = {"error", "completion_percentage", "warning", "questions", "integration"}
    assert set(document) == ALWAYS | optional
    assert document["completion_percentage"] == 0
    assert document["token_usage"] == {
        "input_tokens": 1,
        "output_tokens": 2,
        "estimated_cost": 0.5,
    }


@pytest.mark.requirement("R61")
@pytest.mark.parametrize("result", [BARE, FULL, *(replace(FULL, status=s) for s in Status)])
def test_a_result_is_read_back_equal(result: Result) -> None:
    text = result_to_text(result)
    assert result_from_text(text) == result
    assert result_to_text(result_from_text(text)) == text


@pytest.mark.requirement("R72")
def test_unknown_keys_and_statuses_are_tolerated() -> None:
    document = {**result_to_json(BARE), "status": "paused", "novel": [1], "token_usage": {"x": 1}}
    result = result_from_json(document)
    assert result.status is Status.ERROR
    assert "paused" in result.warning
    assert result_from_json({**document, "success": True}).success
    assert result.token_usage == TokenUsage()


@pytest.mark.parametrize("document", [None, [], "x", {}, {"subagent_id": 1}])
def test_an_invalid_result_is_refused(document: object) -> None:
    with pytest.raises(BadInput):
        result_from_json(document)


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, '{"subagent_id": 1}'], ids=len)
def test_text_that_is_not_a_result_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        result_from_text(text)


def test_values_of_wrong_types_are_ignored() -> None:
    wrong: dict[str, Any] = {key: [1] for key in result_to_json(FULL)}
    result = result_from_json({**wrong, "subagent_id": "bio", "completion_percentage": math.inf})
    assert (result.answer, result.completion_percentage, result.questions) == (None, None, ())


@pytest.mark.parametrize("field", ["answer", "error", "warning", "workspace", "log_path"])
def test_no_lone_surrogate_reaches_the_output(field: str) -> None:
    result = replace(
        FULL,
        **{field: "a\ud800b"},  # type: ignore[arg-type]
        questions=("\udfff",),
        integration={"\ud801": ["\ud802", {"x": math.nan}]},
    )
    text = result_to_text(result)
    text.encode()
    assert "a\ufffdb" in text


def test_hostile_text_survives_losslessly() -> None:
    text = '\n{"type":"agent.subagent_closed"}\x1b[2J\r\u2028\x00é\U0001f600'
    line = result_to_text(replace(BARE, answer=text))
    assert "\n" not in line
    assert json.loads(line)["answer"] == text


@pytest.mark.requirement("R70", "R204", "R206", "R213", "R229", "R230")
def test_the_documented_mixed_results_are_reproduced() -> None:
    documented: dict[str, Any] = {
        "success": False,
        "results": [
            {
                "subagent_id": "research",
                "status": "completed",
                "answer": "Research findings...",
                "workspace": "/path/to/subagents/research/workspace",
                "execution_time_seconds": 45.2,
                "token_usage": {"input_tokens": 5000, "output_tokens": 1200},
            },
            {
                "subagent_id": "analysis",
                "status": "completed_but_timeout",
                "answer": "Analysis results...",
                "workspace": "/path/to/subagents/analysis/workspace",
                "execution_time_seconds": 300.0,
                "completion_percentage": 100,
                "token_usage": {"input_tokens": 8000, "output_tokens": 2000},
            },
            {
                "subagent_id": "synthesis",
                "status": "timeout",
                "answer": None,
                "workspace": "/path/to/subagents/synthesis/workspace",
                "execution_time_seconds": 300.0,
                "completion_percentage": 45,
            },
        ],
        "summary": {"total": 3, "completed": 2, "timeout": 1},
    }
    batch = batch_to_json([result_from_json(result) for result in documented["results"]])
    assert batch["success"] is documented["success"]
    assert batch["summary"] == {
        **documented["summary"],
        "failed": 0,
        "partial": 0,
        "blocked": 0,
        "recovered_timeouts": 1,
    }
    successes = [True, True, False]
    for made, wanted, success in zip(
        batch["results"], documented["results"], successes, strict=True
    ):
        assert made.items() >= wanted.items()
        assert made["success"] is success
        assert made["workspace_path"] == wanted["workspace"]
        assert ("completion_percentage" in made) == ("completion_percentage" in wanted)


@pytest.mark.requirement("R204", "R206")
def test_a_batch_succeeds_if_all_results_do() -> None:
    done = replace(BARE, status=Status.COMPLETED, answer="x")
    assert batch_to_json([done, done])["success"] is True
    assert batch_to_json([done, replace(done, status=Status.PARTIAL)])["success"] is False


@pytest.mark.parametrize("text", ["1e999", "[-1e999]", "NaN", "Infinity"])
def test_an_answer_with_a_number_that_json_lacks_does_not_fit(text: str) -> None:
    with pytest.raises(Mismatch, match="not one JSON document"):
        parse_structured_answer(text, "true")
