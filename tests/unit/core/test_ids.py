"""Ids are safe as folder names and can be typed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import BadInput
from retinue.core.ids import is_id, make_slug, require_id

ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


@pytest.mark.parametrize("text", ["a", "7", "bio", "a-b_c", "A" * 64, "0-", "x_"])
def test_valid_ids_are_returned_unchanged(text: str) -> None:
    assert is_id(text)
    assert require_id(text, "id") is text


@pytest.mark.parametrize(
    "text",
    ["", ".", "..", "-a", "_a", "a/b", "a.b", "a b", "a\n", "a\0", "é", "٣", "A" * 65, "~", "a\\b"],
)
def test_invalid_ids_are_refused_with_the_rule(text: str) -> None:
    with pytest.raises(BadInput) as refused:
        require_id(text, "subagent id")
    assert refused.value.code == "invalid_id"
    assert refused.value.message.isascii() and refused.value.message.isprintable()
    assert "1 to 64" in refused.value.hint


@given(st.text())
def test_an_id_is_one_plain_part_of_a_path(text: str) -> None:
    if is_id(text):
        assert text not in (".", "..") and "/" not in text and "\0" not in text
        assert text.isascii() and text[0] in ALPHABET


@given(st.text(max_size=200), st.integers(min_value=1, max_value=50))
def test_a_slug_is_empty_or_an_id_within_its_limit(text: str, limit: int) -> None:
    made = make_slug(text, limit)
    assert len(made) <= limit
    assert not made or is_id(made)


def test_a_slug_keeps_the_words() -> None:
    assert make_slug("  Build: the SITE (2nd try)! ") == "build-the-site-2nd-try"
    assert make_slug("日本語") == ""
