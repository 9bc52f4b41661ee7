"""Tokens of attempts and the secret behind them."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from retinue.gateway.grants import SECRET, AttemptTokens, MemberTraffic


def subagent(name: str) -> Any:
    return cast(Any, SimpleNamespace(task="t", id=name))


def test_tokens_differ_by_attempt_and_survive_a_new_steward(tmp_path: Path) -> None:
    first, second = AttemptTokens(tmp_path), AttemptTokens(tmp_path)
    assert first.derive_token(subagent("a"), 1) == second.derive_token(subagent("a"), 1)
    assert len({first.derive_token(subagent(name), n) for name in "ab" for n in (1, 2)}) == 4


def test_an_empty_secret_file_is_replaced(tmp_path: Path) -> None:
    # A power loss can leave a file with a name and no content.
    (tmp_path / SECRET).touch()
    known = AttemptTokens(tmp_path).derive_token(subagent("a"), 1)
    assert len((tmp_path / SECRET).read_bytes()) == 32
    assert AttemptTokens(tmp_path).derive_token(subagent("a"), 1) == known


def test_words_of_a_conversation_are_found_at_both_ends_of_a_large_request() -> None:
    for body in (b"the words" + b"x" * 3_000_000, b"x" * 3_000_000 + b"the words", b"the words"):
        traffic = MemberTraffic()
        traffic.expect_words(["other", "the words"])
        traffic.begin(b"none of them")
        assert not traffic.recalled
        traffic.begin(body)
        assert traffic.recalled


def test_very_many_expected_words_delay_no_other_caller() -> None:
    traffic = MemberTraffic()
    traffic.expect_words(["a" * 20 + "b"] * 700)
    began = time.process_time()
    traffic.begin(b"a" * 30_000_000)
    assert time.process_time() - began < 1.5
