"""The outcome of a run follows from its subagents."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.plan import RunOutcome, decide_outcome, estimate_outcome
from retinue.core.subagent import Counts
from support.values import TASK

counts = st.integers(min_value=0, max_value=1000)
OPEN = replace(TASK, next_step=3)


@pytest.mark.requirement("R113")
@given(unclosed=st.integers(min_value=1, max_value=1000), failed=counts)
def test_nothing_is_decided_while_a_subagent_is_open(unclosed: int, failed: int) -> None:
    assert decide_outcome(unclosed=unclosed, failed=failed) is RunOutcome.RUNNING


@pytest.mark.requirement("R122")
def test_a_run_succeeds_when_all_are_closed_and_none_failed() -> None:
    assert decide_outcome(unclosed=0, failed=0) is RunOutcome.SUCCEEDED


@pytest.mark.requirement("R123")
@given(failed=st.integers(min_value=1, max_value=1000))
def test_a_run_fails_when_any_failed(failed: int) -> None:
    assert decide_outcome(unclosed=0, failed=failed) is RunOutcome.FAILED


@pytest.mark.parametrize(
    ("counts", "word"),
    [
        (Counts(), "running"),
        (Counts(total=3, completed=2, running=1, unclosed=1), "running"),
        (Counts(total=2, completed=2), "running"),  # a planned step has not begun
        (Counts(total=3, completed=3), "succeeded"),
        (Counts(total=3, completed=2, cancelled=1), "failed"),
        (Counts(total=2, completed=1, failed=1), "failed"),
    ],
)
def test_an_open_run_shows_its_outcome_so_far(counts: Counts, word: str) -> None:
    assert estimate_outcome(OPEN, counts) == word


def test_a_closed_run_shows_its_recorded_outcome() -> None:
    closed = replace(OPEN, state="closed", outcome="failed")
    assert estimate_outcome(closed, Counts(total=3, completed=3)) is RunOutcome.FAILED
