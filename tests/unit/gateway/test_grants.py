"""Tokens are of one attempt, and are known again by the next steward."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from retinue.gateway.grants import SECRET, Tokens


def subagent(name: str) -> Any:
    return cast(Any, SimpleNamespace(task="t", id=name))


def test_tokens_differ_by_attempt_and_are_the_same_for_the_next_steward(tmp_path: Path) -> None:
    first, second = Tokens(tmp_path), Tokens(tmp_path)
    assert first.of(subagent("a"), 1) == second.of(subagent("a"), 1)
    assert len({first.of(subagent(name), n) for name in "ab" for n in (1, 2)}) == 4


def test_a_secret_that_a_loss_of_power_emptied_is_replaced(tmp_path: Path) -> None:
    (tmp_path / SECRET).touch()
    known = Tokens(tmp_path).of(subagent("a"), 1)
    assert len((tmp_path / SECRET).read_bytes()) == 32
    assert Tokens(tmp_path).of(subagent("a"), 1) == known
