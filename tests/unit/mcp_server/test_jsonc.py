"""Changes to JSON with comments: one item changes, every other character stays."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.mcp_server.install.jsonc import (
    append_element,
    parse_document,
    remove_value,
    set_value,
)

SETTINGS = """\
// Zed's own words
{
    "theme": "One", // light
    /* servers */
    "context_servers": {
        // mine
        "other": {"command": "x", "args": ["a", "b"]}, // keep
    },
    "last": [1, 2,
     3], // trailing
}
"""
PATH = ("context_servers", "retinue")


def test_comments_commas_and_layout_stay() -> None:
    text = set_value(SETTINGS, PATH, {"command": "retinue", "args": ["mcp"]})
    added = """\
        "retinue": {
            "command": "retinue",
            "args": [
                "mcp"
            ]
        },
"""
    before, after = SETTINGS.split(" // keep\n")
    assert text == f"{before} // keep\n{added}{after}"
    assert remove_value(text, PATH) == SETTINGS


def test_one_value_is_replaced() -> None:
    text = set_value(SETTINGS, ("context_servers", "other", "command"), "y")
    assert text == SETTINGS.replace('"command": "x"', '"command": "y"')


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", '{\n  "a": {\n    "b": 1\n  }\n}\n'),
        ("{}", '{\n  "a": {\n    "b": 1\n  }\n}'),
        ("// only a comment", '// only a comment\n{\n  "a": {\n    "b": 1\n  }\n}\n'),
        ('{"x": 1}', '{"x": 1, "a": {"b": 1}}'),
        ('{"x": 1,}', '{"x": 1, "a": {"b": 1},}'),
        ('{\n\t"x": 1\n}', '{\n\t"x": 1,\n\t"a": {\n\t\t"b": 1\n\t}\n}'),
        ('{\n "x": 1 /* one */\n}', '{\n "x": 1, /* one */\n "a": {\n  "b": 1\n }\n}'),
        ('{\n  // none yet\n}', '{\n  // none yet\n  "a": {\n    "b": 1\n  }\n}'),
    ],
)  # fmt: skip
def test_what_is_missing_on_the_way_is_made(before: str, after: str) -> None:
    assert set_value(before, ("a", "b"), 1) == after


@pytest.mark.parametrize(
    ("before", "path", "after"),
    [
        ('{"a": 1, "b": 2}', ("a",), '{"b": 2}'),
        ('{"a": 1, "b": 2}', ("b",), '{"a": 1}'),
        ('{"a": 1, "b": 2,}', ("b",), '{"a": 1,}'),
        ('{"a": {"b": 1}, "c": 2}', ("a", "b"), '{"c": 2}'),
        ('{"a": {/* why */ "b": 1}}', ("a", "b"), '{"a": {/* why */ }}'),
        ('{\n  "a": 1,\n  // of b\n  "b": 2\n}', ("b",), '{\n  "a": 1\n  // of b\n}'),
        ('{"a": [1, 2, 3]}', ("a", 1), '{"a": [1, 3]}'),
        ('{"a": 1}', ("x", "y"), '{"a": 1}'),
        ("", ("x",), ""),
    ],
)
def test_an_item_is_removed_with_what_held_nothing_else(
    before: str, path: tuple[str | int, ...], after: str
) -> None:
    assert remove_value(before, path) == after
    parse_document(after)


def test_an_element_is_appended() -> None:
    assert append_element('{"a": [1]}', ("a",), {"b": 2}) == '{"a": [1, {"b": 2}]}'
    text = append_element('{\n  "a": [\n    1 // one\n  ]\n}\n', ("a",), 2)
    assert text == '{\n  "a": [\n    1, // one\n    2\n  ]\n}\n'


@pytest.mark.parametrize(
    "text",
    ["{", "[1 2]", "{1: 2}", '{"a" 1}', '{"a": 1} x', '{"a": 1, "a": 2}', "{'a': 1}", "/* {}"],
)
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"Expecting|twice|Extra"):
        parse_document(text)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=4)


@given(document=OBJECTS, indent=st.sampled_from([None, 2, "\t"]), value=VALUES)
def test_adding_changes_nothing_else_and_removing_restores_the_text(
    document: dict[str, Any], indent: int | str | None, value: Any
) -> None:
    document.pop("retinue", None)
    text = json.dumps(document, indent=indent)
    added = set_value(text, ("retinue",), value)
    assert json.loads(added) == document | {"retinue": value}
    assert parse_document(added).value == document | {"retinue": value}
    assert remove_value(added, ("retinue",)) == text
