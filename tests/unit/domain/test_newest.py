"""What is remembered is bounded."""

from __future__ import annotations

from retinue.domain.newest import Newest


def test_the_one_that_was_put_in_longest_ago_goes_first() -> None:
    kept = Newest[str, int](2)
    kept["a"] = 1
    kept["b"] = 2
    kept["a"] = 3
    kept["c"] = 4
    assert kept == {"a": 3, "c": 4}
