"""Frozen values with some of their fields changed."""

from __future__ import annotations

from typing import TypeVar

Value = TypeVar("Value")


def changed(value: Value, **fields: object) -> Value:
    """The same as `dataclasses.replace`, without the constructor, in a tenth of the time.

    For values that have nothing to check, where every event moves them.
    """
    before = vars(value)
    assert fields.keys() <= before.keys(), f"{type(value).__name__} has no such field: {fields}"
    new = object.__new__(type(value))
    vars(new).update(before, **fields)
    return new
