"""The run's end follows its children's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.gate import RunOutcome, outcome

counts = st.integers(min_value=0, max_value=1000)


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
