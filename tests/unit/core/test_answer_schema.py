"""Answers are checked by the keywords that a schema may have; any other keyword is refused."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.core.answer_schema import (
    Mismatch,
    UnusableSchema,
    check_value,
    require_usable_schema,
)

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 1},
        "kind": {"enum": ["a", "b"]},
        "list": {"type": "array", "items": {"$ref": "#/$defs/word"}, "maxItems": 2},
    },
    "required": ["n"],
    "additionalProperties": False,
    "$defs": {"word": {"type": "string", "pattern": "^[a-z]+$"}},
}


@pytest.mark.parametrize("value", [{"n": 1}, {"n": 2.0, "kind": "a"}, {"n": 1, "list": ["x", "y"]}])
def test_a_value_that_fits_passes(value: object) -> None:
    require_usable_schema(SCHEMA)
    check_value(SCHEMA, value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({}, "lacks 'n'"),
        ([], "not of type object"),
        ({"n": True}, "not of type integer"),
        ({"n": 1.5}, "not of type integer"),
        ({"n": float("inf")}, "not of type integer"),
        ({"n": 0}, "breaks minimum 1"),
        ({"n": 1, "kind": "c"}, "none of"),
        ({"n": 1, "list": ["X"]}, "does not match"),
        ({"n": 1, "list": ["x", "y", "z"]}, "breaks maxItems 2"),
        ({"n": 1, "more": 1}, "not allowed"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_the_condition(value: object, words: str) -> None:
    with pytest.raises(Mismatch, match=words):
        check_value(SCHEMA, value)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "date"},
        {"dependentRequired": {}},
        {"properties": {"a": {"if": {}}}},
        {"$ref": "#/$defs/none"},
        {"pattern": "("},
        {"pattern": 5},
        {"type": {"a": 1}},
        {"type": [["string"]]},
        {"minimum": "1"},
        {"minimum": True},
        {"maxItems": "2"},
        {"minLength": 1.5},
        {"enum": 5},
        {"required": 5},
        {"required": [1]},
        {"anyOf": 5},
        {"uniqueItems": "yes"},
        {"items": [{}]},
        [],
    ],
)
def test_a_schema_with_a_condition_that_is_not_checked_is_refused(schema: object) -> None:
    with pytest.raises(UnusableSchema):
        require_usable_schema(schema)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), 1.5])
def test_a_number_without_an_integer_value_is_no_integer(value: float) -> None:
    with pytest.raises(Mismatch):
        check_value({"type": "integer"}, value)


@pytest.mark.parametrize(
    "schema",
    [{"minLength": "1"}, {"maximum": None}, {"required": "n"}, {"enum": 1}, {"anyOf": {}}],
)
def test_a_condition_of_another_type_is_refused(schema: object) -> None:
    with pytest.raises(UnusableSchema):
        require_usable_schema(schema)
