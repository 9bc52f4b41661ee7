"""Dictionary with a maximum size."""

from __future__ import annotations

from retinue.core.data_structures import BoundedDict


def test_the_oldest_entry_is_dropped_first() -> None:
    kept = BoundedDict[str, int](2)
    kept["a"] = 1
    kept["b"] = 2
    kept["a"] = 3
    kept["c"] = 4
    assert kept == {"a": 3, "c": 4}
