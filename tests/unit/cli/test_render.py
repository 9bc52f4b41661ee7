"""Text for people: nothing that others wrote can act on a terminal."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.cli import render, tables

HOSTILE = {
    "\x1b[31mred": "\\x1b[31mred",
    "\x1b]0;title\x07": "\\x1b]0;title\\x07",
    "over\rwritten": "over\\rwritten",
    "nul\x00": "nul\\x00",
    "back\x08space": "back\\x08space",
    "del\x7f": "del\\x7f",
    "c1 \x9b31m": "c1 \\x9b31m",
    "next\x85line": "next\\x85line",
    "turned \u202egnp.exe": "turned \\u202egnp.exe",
    "isolate \u2066x\u2069": "isolate \\u2066x\\u2069",
    "mark \u200e\u200f\u061c": "mark \\u200e\\u200f\\u061c",
    "line\u2028para\u2029": "line\\u2028para\\u2029",
    "lone \udcff": "lone \\udcff",
    "bom \ufeff": "bom \\ufeff",
    "form\x0cfeed\x0b": "form\\x0cfeed\\x0b",
}


@pytest.mark.parametrize(("text", "shown"), HOSTILE.items(), ids=range(len(HOSTILE)))
def test_active_characters_are_made_visible(text: str, shown: str) -> None:
    assert render.escape_text(text) == shown


@pytest.mark.parametrize(
    "text", ["plain", "two\nlines", "a\ttab", "größer 東京 👍", "नमस्ते", "न\u200dम", ""]
)
def test_honest_text_is_left_as_it_is(text: str) -> None:
    assert render.escape_text(text) == text


@given(st.text(st.characters()))
def test_no_control_character_but_line_feed_and_tab_survives(text: str) -> None:
    shown = render.escape_text(text)
    assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t"]
    shown.encode("utf-8")


@given(st.text(st.characters()))
def test_one_line_is_one_line_for_every_reader(text: str) -> None:
    assert len(render.to_one_line(text).splitlines()) <= 1


def test_a_table_is_aligned_and_each_row_is_one_line() -> None:
    shown = render.format_table(
        ("ID", "N", "TITLE"),
        [("a", 1, "two\nlines"), ("longer", 12, "x\r\x1b[2Jy")],
        right=(1,),
    )
    assert shown.split("\n") == [
        "ID       N  TITLE",
        "a        1  two lines",
        "longer  12  x\\r\\x1b[2Jy",
    ]


def test_wide_characters_take_the_columns_they_need() -> None:
    first, second, third = render.format_table(("A", "B"), [("東京", "x"), ("ab", "y")]).split("\n")
    assert (first, second, third) == ("A     B", "東京  x", "ab    y")


def test_a_long_cell_is_cut() -> None:
    assert len(render.format_cell("x" * 1000)) == render.WIDEST_CELL


def test_facts_without_a_value_are_left_out() -> None:
    assert render.format_facts([("name", "x"), ("error", None), ("n", 0)]) == "name  x\nn     0"


def test_json_is_one_line_of_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    document = {"a": "é\u2028\x1b\x7f\udcff\x9b"}
    render.print_json(document)
    shown = capsys.readouterr().out
    assert shown.isascii() and shown[:-1].isprintable() and shown.endswith("}\n")
    assert json.loads(shown) == document


def test_output_that_is_not_a_terminal_has_no_colour() -> None:
    assert render.format_status("failed") == "failed"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.04, "0.0s"), (59.94, "59.9s"), (61, "1m01s"), (3723, "1h02m"), (None, "-"), (True, "-")],
)
def test_seconds_are_short(value: object, shown: str) -> None:
    assert render.format_seconds(value) == shown


def test_unknown_tokens_are_not_zero() -> None:
    assert render.format_tokens({}) == "-"
    assert render.format_tokens({"input_tokens": 0, "output_tokens": 7}) == "0/7"
    assert render.format_tokens({"input_tokens": 5}) == "5/?"


@pytest.mark.requirement("R226")
def test_the_cost_of_a_result_is_shown() -> None:
    ended = {"subagent_id": "a", "status": "partial", "workspace": "/w"}
    usage = {"input_tokens": 50, "output_tokens": 3, "estimated_cost": 0.05}
    assert "50 + 3 tokens, $0.0500" in tables.format_result(ended | {"token_usage": usage})
    assert "tokens" not in tables.format_result(ended | {"token_usage": {}})


@pytest.mark.parametrize("text", ["plain", "東京東京東京", "e\u0301e\u0301e\u0301", "a東b京c", ""])
@pytest.mark.parametrize("width", [0, 1, 4, 5, 30])
def test_text_is_cut_and_filled_by_columns_and_not_by_characters(text: str, width: int) -> None:
    for right in (False, True):
        shown = render.fit_to_width(text, width, right=right)
        assert render.measure_width(shown) == width
        assert text.startswith(shown.strip())


def test_a_line_with_wide_characters_is_cut_to_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "11")
    shown = render.cut_to_screen("\x1b[31m東京東京\x1b[0m東京")
    assert shown == "\x1b[31m東京東京\x1b[0m東"
    # What follows a character that did not fit is left out, however narrow it is.
    assert render.cut_to_screen("123456789\x1b[31m東\x1b[0mx") == "123456789\x1b[31m\x1b[0m"
