"""The run's end follows its children's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.gate import RunOutcome, outcome, outcome_by_now
from retinue.domain.subagent import Counts
from support.values import TASK

counts = st.integers(min_value=0, max_value=1000)
OPEN = replace(TASK, next_step=3)


@pytest.mark.requirement("R113")
@given(unclosed=st.integers(min_value=1, max_value=1000), failed=counts)
def test_nothing_is_decided_while_anyone_is_open(unclosed: int, failed: int) -> None:
    assert outcome(unclosed=unclosed, failed=failed) is RunOutcome.RUNNING


@pytest.mark.requirement("R122")
def test_a_run_succeeds_when_all_are_closed_and_none_failed() -> None:
    assert outcome(unclosed=0, failed=0) is RunOutcome.SUCCEEDED


@pytest.mark.requirement("R123")
@given(failed=st.integers(min_value=1, max_value=1000))
def test_a_run_fails_when_any_failed(failed: int) -> None:
    assert outcome(unclosed=0, failed=failed) is RunOutcome.FAILED


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
def test_an_open_run_is_shown_with_what_it_came_to_so_far(counts: Counts, word: str) -> None:
    assert outcome_by_now(OPEN, counts) == word


def test_a_closed_run_is_shown_with_the_outcome_it_got() -> None:
    closed = replace(OPEN, state="closed", outcome="failed")
    assert outcome_by_now(closed, Counts(total=3, completed=3)) is RunOutcome.FAILED
