"""Changing a frozen value."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.changing import changed
from retinue.domain.lifecycle import Standing, State


@given(st.sampled_from(State), st.integers(), st.booleans())
def test_it_is_what_replace_would_have_made(state: State, attempt: int, blocked: bool) -> None:
    before = Standing(cancel_by="parent", settled_seq=7)
    fields = {"state": state, "attempt": attempt, "blocked": blocked}
    after = changed(before, **fields)
    assert after == replace(before, **fields)
    assert before == Standing(cancel_by="parent", settled_seq=7)
    assert hash(after) == hash(replace(before, **fields))


def test_the_new_one_is_as_frozen() -> None:
    after = changed(Standing(), attempt=1)
    with pytest.raises(FrozenInstanceError):
        after.attempt = 2  # type: ignore[misc]


def test_a_field_that_is_not_there_is_refused() -> None:
    with pytest.raises(AssertionError, match="Standing has no such field"):
        changed(Standing(), attempts=1)
