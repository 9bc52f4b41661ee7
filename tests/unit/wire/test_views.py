"""What people and agents are shown."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.ids import SubagentId
from retinue.domain.lifecycle import Standing, State
from retinue.domain.recovery import Testimony, TokenUsage
from retinue.domain.result import Result
from retinue.domain.subagent import Attempt, Counts, Gate, Subagent, Totals
from retinue.domain.team import Phase
from retinue.wire import views
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
    return views.subagent_to_json(
        subagent, workspace="/w", testimony=testimony, result=result, now=NOW
    )


@pytest.mark.requirement("R247")
def test_a_running_one_is_shown_with_its_nine_fields() -> None:
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


def test_what_is_not_known_is_left_out() -> None:
    view = row(replace(SUBAGENT, started_at="", standing=Standing()))
    assert view["started_at"] is None
    assert view["elapsed_seconds"] == 0.0
    assert view["token_usage"] == {}
    assert not {"phase", "completion_percentage", "close_reason"} & set(view)


def test_a_result_counts_for_more_than_a_claim() -> None:
    claim = Testimony(completion_percentage=10, usage=TokenUsage(input_tokens=999))
    view = row(SUBAGENT, claim, RESULT)
    assert (view["completion_percentage"], view["token_usage"]) == (100, {"input_tokens": 3})


def test_who_has_ended_took_as_long_as_its_result_says_even_if_that_was_noticed_late() -> None:
    result = replace(RESULT, execution_time_seconds=2.0)
    assert row(SUBAGENT, result=result)["elapsed_seconds"] == 2.5, "a further attempt is under way"
    ended = replace(SUBAGENT, ended_at="2026-01-01T00:00:09.400Z")
    assert row(ended, result=result)["elapsed_seconds"] == 2.0


@pytest.mark.requirement("R248")
def test_metrics_have_totals_and_the_sums_over_subagents() -> None:
    assert json.loads(views.metrics_to_text(TOTALS)) == {
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
def test_the_metrics_of_the_published_example_come_out_as_published() -> None:
    spent = Totals(
        subagents=3,
        input_tokens=15000,
        output_tokens=6000,
        estimated_cost=0.037,
        root_input_tokens=20000,
        root_output_tokens=7000,
        root_cost=0.046,
    )
    assert json.loads(views.metrics_to_text(spent)) == {
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


def test_a_tasks_status_counts_its_subagents_each_once() -> None:
    counts = Counts(total=6, running=1, completed=2, failed=1, cancelled=2, unclosed=1)
    status = json.loads(views.task_status_to_text(TASK, counts))
    assert status["counts"].pop("total") == sum(status["counts"].values()) == 6
    assert (status["subagents"], status["unclosed"]) == (6, 1)
    assert (status["task_id"], status["state"], status["last_seq"]) == ("site", "open", 9)


@pytest.mark.requirement("R251")
def test_a_spawned_one_says_where_its_work_and_its_status_are() -> None:
    assert views.spawned_to_json(SUBAGENT, workspace="/w", status_file="/s") == {
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
    assert views.attempt_to_json(attempt) == {
        "attempt": 1,
        "pid": None,
        "started_at": "t",
        "ended_at": None,
        "result": None,
    }
    done = views.attempt_to_json(replace(attempt, pid=7, ended_at="u", result=RESULT))
    assert (done["pid"], done["ended_at"], done["result"]["answer"]) == (7, "u", "x")
    gate = Gate(id="bio-1", subagent=SubagentId("bio"), state="open", questions=("which?",))
    assert views.gate_to_json(gate) == {
        "gate_id": "bio-1",
        "agentInstance": "bio",
        "state": "open",
        "questions": ["which?"],
        "answer": None,
    }


def test_the_contract_is_shown_as_it_is_stored() -> None:
    assert views.contract_to_json(SUBAGENT)["step"]["title"] == "Bio"


seconds = st.floats(min_value=0, max_value=4e9)


@given(seconds, seconds)
def test_no_clock_makes_a_duration_negative(first: float, second: float) -> None:
    assert views.elapsed(views.timestamp(first), views.timestamp(second)) >= 0


@pytest.mark.parametrize(
    ("seconds", "moment"),
    [
        (2.0**40, "9999-12-31T23:59:59.000Z"),
        (2.0**63, "9999-12-31T23:59:59.000Z"),
        (-(2.0**63), "0001-01-01T00:00:00.000Z"),
    ],
)
def test_a_moment_beyond_all_years_is_the_last_or_the_first(seconds: float, moment: str) -> None:
    assert views.timestamp(seconds) == moment


def test_a_time_stamp_is_utc_to_the_millisecond() -> None:
    assert views.timestamp(1_700_000_000.0126) == "2023-11-14T22:13:20.012Z"
