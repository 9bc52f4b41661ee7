"""JSON views for people and agents."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.clock import format_timestamp
from retinue.core.ids import SubagentId
from retinue.core.lifecycle import Standing, State
from retinue.core.result import Result, Testimony, TokenUsage
from retinue.core.subagent import Attempt, Counts, Gate, Subagent, Totals
from retinue.core.voting import Phase
from retinue.formats import views_json
from support import values

SUBAGENT = replace(
    values.SUBAGENT,
    standing=Standing(state=State.RUNNING, attempt=1, in_attempt=True),
    started_at="2026-01-01T00:00:01.000Z",
)
TASK = replace(values.TASK, last_seq=9, next_step=3)
TOTALS = Totals(subagents=2, input_tokens=120, output_tokens=30, estimated_cost=0.75)
RESULT = replace(values.RESULT, completion_percentage=100)
NOW = "2026-01-01T00:00:03.500Z"


def row(
    subagent: Subagent, testimony: Testimony | None = None, result: Result | None = None
) -> dict[str, object]:
    return views_json.subagent_to_json(
        subagent, workspace="/w", testimony=testimony, result=result, now=NOW
    )


@pytest.mark.requirement("R247")
def test_a_running_subagent_has_its_nine_fields() -> None:
    testimony = Testimony(
        phase=Phase.ENFORCEMENT, completion_percentage=75, usage=TokenUsage(output_tokens=5)
    )
    view = row(SUBAGENT, testimony)
    assert view["subagent_id"] == view["agentInstance"] == "bio"
    assert (view["status"], view["state"], view["phase"]) == ("running", "running", "enforcement")
    assert (view["completion_percentage"], view["task"], view["workspace"]) == (75, "Bio", "/w")
    assert view["started_at"] == "2026-01-01T00:00:01.000Z"
    assert view["elapsed_seconds"] == 2.5
    assert view["token_usage"] == {"output_tokens": 5}


def test_unknown_values_are_left_out() -> None:
    view = row(replace(SUBAGENT, started_at="", standing=Standing()))
    assert view["started_at"] is None
    assert view["elapsed_seconds"] == 0.0
    assert view["token_usage"] == {}
    assert not {"phase", "completion_percentage", "close_reason"} & set(view)


def test_a_result_overrides_a_claim() -> None:
    claim = Testimony(completion_percentage=10, usage=TokenUsage(input_tokens=999))
    view = row(SUBAGENT, claim, RESULT)
    assert (view["completion_percentage"], view["token_usage"]) == (100, {"input_tokens": 3})


def test_an_ended_subagent_shows_the_measured_time_of_its_result() -> None:
    result = replace(RESULT, execution_time_seconds=2.0)
    assert row(SUBAGENT, result=result)["elapsed_seconds"] == 2.5, "a further attempt is under way"
    ended = replace(SUBAGENT, ended_at="2026-01-01T00:00:09.400Z")
    assert row(ended, result=result)["elapsed_seconds"] == 2.0


@pytest.mark.requirement("R248")
def test_metrics_have_totals_and_the_sums_over_subagents() -> None:
    assert json.loads(views_json.metrics_to_text(TOTALS)) == {
        "totals": {
            "input_tokens": 120,
            "output_tokens": 30,
            "estimated_cost": 0.75,
            "agent_cost": 0.0,
            "subagent_cost": 0.75,
        },
        "subagents": {
            "total_subagents": 2,
            "total_input_tokens": 120,
            "total_output_tokens": 30,
            "total_estimated_cost": 0.75,
        },
    }


@pytest.mark.requirement("R237", "R248")
def test_the_documented_metrics_example_is_reproduced() -> None:
    spent = Totals(
        subagents=3,
        input_tokens=15000,
        output_tokens=6000,
        estimated_cost=0.037,
        root_input_tokens=20000,
        root_output_tokens=7000,
        root_cost=0.046,
    )
    assert json.loads(views_json.metrics_to_text(spent)) == {
        "totals": {
            "input_tokens": 35000,
            "output_tokens": 13000,
            "estimated_cost": 0.083,
            "agent_cost": 0.046,
            "subagent_cost": 0.037,
        },
        "subagents": {
            "total_subagents": 3,
            "total_input_tokens": 15000,
            "total_output_tokens": 6000,
            "total_estimated_cost": 0.037,
        },
    }


def test_metrics_name_the_models_that_the_costs_leave_out() -> None:
    spent = replace(TOTALS, unpriced_models=("a",), root_unpriced_models=("b", "a"))
    metrics = views_json.totals_to_json(spent)
    assert metrics["totals"]["unpriced_models"] == ["a", "b"]
    assert metrics["subagents"]["unpriced_models"] == ["a"]


def test_a_task_status_counts_each_subagent_once() -> None:
    counts = Counts(total=6, running=1, completed=2, failed=1, cancelled=2, unclosed=1)
    status = json.loads(views_json.task_status_to_text(TASK, counts))
    assert status["counts"].pop("total") == sum(status["counts"].values()) == 6
    assert (status["subagents"], status["unclosed"]) == (6, 1)
    assert (status["task_id"], status["state"], status["last_seq"]) == ("site", "open", 9)


@pytest.mark.requirement("R251")
def test_a_spawned_subagent_has_workspace_and_status_file() -> None:
    assert views_json.spawned_to_json(SUBAGENT, workspace="/w", status_file="/s") == {
        "subagent_id": "bio",
        "status": "running",
        "workspace": "/w",
        "workspace_path": "/w",
        "status_file": "/s",
    }


def test_attempts_and_gates_are_shown() -> None:
    attempt = Attempt(
        number=1, boot_id="b", pid=0, start_ticks=0, started_at="t", started_monotonic_ms=0
    )
    assert views_json.attempt_to_json(attempt) == {
        "attempt": 1,
        "pid": None,
        "started_at": "t",
        "ended_at": None,
        "result": None,
    }
    done = views_json.attempt_to_json(replace(attempt, pid=7, ended_at="u", result=RESULT))
    assert (done["pid"], done["ended_at"], done["result"]["answer"]) == (7, "u", "x")
    gate = Gate(id="bio-1", subagent=SubagentId("bio"), state="open", questions=("which?",))
    assert views_json.gate_to_json(gate) == {
        "gate_id": "bio-1",
        "agentInstance": "bio",
        "state": "open",
        "questions": ["which?"],
        "answer": None,
    }


def test_the_contract_is_shown_as_it_is_stored() -> None:
    assert views_json.contract_to_json(SUBAGENT)["step"]["title"] == "Bio"


seconds = st.floats(min_value=0, max_value=4e9)


@given(seconds, seconds)
def test_no_clock_makes_a_duration_negative(first: float, second: float) -> None:
    assert views_json.compute_elapsed(format_timestamp(first), format_timestamp(second)) >= 0


@pytest.mark.parametrize(
    ("seconds", "moment"),
    [
        (2.0**40, "9999-12-31T23:59:59.000Z"),
        (2.0**63, "9999-12-31T23:59:59.000Z"),
        (-(2.0**63), "0001-01-01T00:00:00.000Z"),
    ],
)
def test_a_time_beyond_all_years_is_clamped(seconds: float, moment: str) -> None:
    assert format_timestamp(seconds) == moment


def test_a_time_stamp_is_utc_to_the_millisecond() -> None:
    assert format_timestamp(1_700_000_000.0126) == "2023-11-14T22:13:20.012Z"
