"""Bounded schemas for tool calls, and parsing of the answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from retinue.core.errors import BadInput
from retinue.team.models.constrained_calls import (
    LONGEST_TEXT,
    MOST_ITEMS,
    build_response_format,
    parse_call,
)

WRITE = (
    "write_file",
    "Write a file.",
    {
        "type": "object",
        "properties": {"path": {"type": "string", "maxLength": 60}, "content": {"type": "string"}},
        "required": ["path", "content"],
    },
)
VOTE = (
    "vote",
    "",
    {"properties": {"agent_id": {"enum": ["a", "b"]}}, "required": ["agent_id"]},
)


def schema_of(*tools: Any) -> dict[str, Any]:
    document = build_response_format(tools)
    assert document["type"] == "json_schema"
    return dict(document["json_schema"]["schema"])


def arguments(schema: dict[str, Any]) -> dict[str, Any]:
    return dict(schema["properties"]["args"])


def test_each_tool_is_one_alternative_that_names_it() -> None:
    calls = schema_of(WRITE, VOTE)["oneOf"]
    assert [call["properties"]["tool"]["const"] for call in calls] == ["write_file", "vote"]
    assert all(call["required"] == ["tool", "args"] for call in calls)
    assert calls[0]["description"] == "Write a file."


def test_texts_are_bounded_by_their_schema_or_by_a_default() -> None:
    properties = arguments(schema_of(WRITE))["properties"]
    assert properties["path"]["maxLength"] == 60
    assert properties["content"]["maxLength"] == LONGEST_TEXT


def test_nested_lists_objects_and_choices_are_bounded() -> None:
    tool = (
        "t",
        "",
        {
            "type": "object",
            "properties": {
                "many": {"type": "array", "items": {"type": "string"}, "maxItems": 1000},
                "free": {"type": "object", "additionalProperties": True},
                "either": {"type": ["string", "null"]},
                "patterned": {"type": "string", "pattern": ".*"},
                "untyped": {},
            },
        },
    )
    parts = arguments(schema_of(tool))["properties"]
    text = {"type": "string", "maxLength": 400}
    assert parts["many"] == {"type": "array", "items": text, "maxItems": MOST_ITEMS}
    assert parts["free"]["additionalProperties"] is False
    assert parts["either"] == {"anyOf": [text, {"type": "null"}]}
    assert parts["patterned"] == parts["untyped"] == text


@pytest.mark.parametrize(
    ("schema", "code"),
    [
        ({"properties": {"x": {"$ref": "#/x"}}}, "unbounded_schema"),
        ({"properties": {"x": {"type": "file"}}}, "bad_schema"),
    ],
)
def test_a_schema_that_cannot_be_bounded_is_refused(schema: dict[str, Any], code: str) -> None:
    with pytest.raises(BadInput) as refused:
        build_response_format([("t", "", schema)])
    assert refused.value.code == code


def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(20):
        deep = {"type": "array", "items": deep}
    with pytest.raises(BadInput, match="levels deep"):
        build_response_format([("t", "", {"properties": {"x": deep}})])


def test_an_empty_list_of_tools_is_refused() -> None:
    with pytest.raises(BadInput, match="at least one tool"):
        build_response_format([])


def test_a_call_is_parsed() -> None:
    reply = json.dumps({"tool": "vote", "args": {"agent_id": "a"}})
    assert parse_call(reply, ["vote", "write_file"]) == ("vote", {"agent_id": "a"})


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "Hello",
        '{"tool": "vote", "args": {"agent_',
        '{"tool": "vote"}',
        '{"tool": "rm", "args": {}}',
        '{"tool": ["vote"], "args": {}}',
        '{"tool": "vote", "args": []}',
        '{"tool": "vote", "args": {}, "more": 1}',
        "[" * 100_000,
    ],
)
def test_an_answer_that_is_no_call_is_refused(reply: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_call(reply, {"vote"})
    assert refused.value.code == "no_call"
