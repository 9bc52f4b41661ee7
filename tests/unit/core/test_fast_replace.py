"""Changing a frozen dataclass."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.data_structures import replace_fields
from retinue.core.lifecycle import Standing, State


@given(st.sampled_from(State), st.integers(), st.booleans())
def test_it_equals_dataclasses_replace(state: State, attempt: int, blocked: bool) -> None:
    before = Standing(cancel_by="parent", settled_seq=7)
    fields = {"state": state, "attempt": attempt, "blocked": blocked}
    after = replace_fields(before, **fields)
    assert after == replace(before, **fields)
    assert before == Standing(cancel_by="parent", settled_seq=7)
    assert hash(after) == hash(replace(before, **fields))


def test_the_copy_is_frozen() -> None:
    after = replace_fields(Standing(), attempt=1)
    with pytest.raises(FrozenInstanceError):
        after.attempt = 2  # type: ignore[misc]


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(AssertionError, match="Standing has no such field"):
        replace_fields(Standing(), attempts=1)
