"""Checks of an answer by a JSON schema, for the keywords that language models are given.

A schema with any other keyword is refused: a condition that is not checked must not look as if it
were. Patterns are Python regular expressions; `$ref` leads to `$defs` of the same schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

MAX_DEPTH = 32  # of nested schemas and values
NOTES = {"title", "description", "default", "examples", "$schema", "$id", "$comment", "$defs"}
NOTES |= {"deprecated", "format"}
TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    # In JSON Schema 2.0 is an integer, too. Infinity is not, and int() would raise for it.
    "integer": lambda value: (
        (isinstance(value, int) and not isinstance(value, bool))
        or (isinstance(value, float) and value.is_integer())
    ),
}
LIMITS: dict[str, Callable[[Any, Any], bool]] = {
    "minimum": lambda value, limit: value >= limit,
    "maximum": lambda value, limit: value <= limit,
    "exclusiveMinimum": lambda value, limit: value > limit,
    "exclusiveMaximum": lambda value, limit: value < limit,
}
# Keyword -> the type of value it applies to, and whether its number is a maximum.
SIZES = {
    "minLength": (str, False),
    "maxLength": (str, True),
    "minItems": (list, False),
    "maxItems": (list, True),
    "minProperties": (dict, False),
    "maxProperties": (dict, True),
}
WITH_SCHEMAS = ("anyOf", "oneOf", "allOf")  # keywords that have a list of schemas
WITH_SCHEMA = ("items", "not")  # keywords that have one schema
KNOWN = {
    *("type", "properties", "required", "additionalProperties", "enum", "const", "pattern"),
    *("uniqueItems", "$ref", *NOTES, *LIMITS, *SIZES, *WITH_SCHEMAS, *WITH_SCHEMA),
}


class UnusableSchema(Exception):
    """The schema has a keyword that is not supported, or is malformed; the message says where."""


class Mismatch(Exception):
    """The answer does not fit its schema; the message names the place and the condition."""


def require_usable_schema(schema: object) -> None:
    """Check that every condition of a schema can be checked here.

    Raises:
        UnusableSchema: names the keyword.
    """
    _require_usable(schema, schema, "the schema", 0)


def _require_usable(schema: object, whole: object, where: str, depth: int) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise UnusableSchema(f"{where} is not an object")
    if depth > MAX_DEPTH:
        raise UnusableSchema(f"{where} is nested too deeply")
    for keyword, value in schema.items():
        if keyword not in KNOWN:
            raise UnusableSchema(f"{where} has the keyword {keyword[:40]!a}, which is not checked")
        if expected := _find_wrong_form(keyword, value):
            raise UnusableSchema(f"{keyword} of {where} is not {expected}")
    if "$ref" in schema and _find_definition(schema["$ref"], whole) is None:
        raise UnusableSchema(f"{where} refers to {str(schema['$ref'])[:80]!a}, not in its $defs")
    for keyword in ("properties", "$defs"):
        for name, part in schema.get(keyword, {}).items():
            _require_usable(part, whole, f"{where}.{name}", depth + 1)
    for keyword in (*WITH_SCHEMA, "additionalProperties"):
        if keyword in schema:
            _require_usable(schema[keyword], whole, f"{keyword} of {where}", depth + 1)
    for keyword in WITH_SCHEMAS:
        for part in schema.get(keyword, []):
            _require_usable(part, whole, f"{keyword} of {where}", depth + 1)


def _find_wrong_form(keyword: str, value: Any) -> str:
    """Return what the value of this keyword has to be, if it is not; empty if it is.

    A value of another form would fail only when an answer is checked, after the work is done.
    """
    if keyword == "type":
        kinds = value if isinstance(value, list) else [value]
        known = all(isinstance(kind, str) and kind in TYPES for kind in kinds)
        return "" if known else f"one of {', '.join(TYPES)}, or a list of these"
    if keyword in ("properties", "$defs"):
        return "" if isinstance(value, dict) else "an object"
    if keyword in ("enum", *WITH_SCHEMAS):
        return "" if isinstance(value, list) else "a list"
    if keyword == "required":
        names = isinstance(value, list) and all(isinstance(name, str) for name in value)
        return "" if names else "a list of texts"
    if keyword == "uniqueItems":
        return "" if isinstance(value, bool) else "true or false"
    if keyword in LIMITS:
        return "" if TYPES["number"](value) else "a number"
    if keyword in SIZES:
        return "" if TYPES["integer"](value) else "a whole number"
    return "a regular expression" if keyword == "pattern" and not _is_regex(value) else ""


def _is_regex(value: object) -> bool:
    try:
        re.compile(value)  # type: ignore[call-overload]
    except (re.error, TypeError):
        return False
    return isinstance(value, str)


def _find_definition(reference: object, whole: object) -> object:
    name = str(reference).removeprefix("#/$defs/")
    definitions = whole.get("$defs", {}) if isinstance(whole, dict) else {}
    found: object = definitions.get(name) if f"#/$defs/{name}" == reference else None
    return found


def check_value(schema: object, value: object) -> None:
    """Check a value by a usable schema.

    Raises:
        Mismatch: names the first condition that it does not meet.
    """
    _check(schema, value, schema, "the answer", 0)


def _check(schema: object, value: Any, whole: object, where: str, depth: int) -> None:
    if schema is True:
        return
    if not isinstance(schema, Mapping):
        raise Mismatch(f"{where} is not allowed")
    if depth > MAX_DEPTH:
        raise Mismatch(f"{where} is nested too deeply")
    if "$ref" in schema:
        _check(_find_definition(schema["$ref"], whole), value, whole, where, depth + 1)
    _check_type(schema, value, where)
    if "enum" in schema and not any(_equals(value, each) for each in schema["enum"]):
        raise Mismatch(f"{where} is none of {str(schema['enum'])[:200]}")
    if "const" in schema and not _equals(value, schema["const"]):
        raise Mismatch(f"{where} is not {str(schema['const'])[:200]!a}")
    _check_bounds(schema, value, where)
    if isinstance(value, dict):
        _check_object(schema, value, whole, where, depth)
    if isinstance(value, list):
        if schema.get("uniqueItems") and any(
            _equals(one, other) for at, one in enumerate(value) for other in value[:at]
        ):
            raise Mismatch(f"{where} has two equal items")
        for at, item in enumerate(value):
            _check(schema.get("items", True), item, whole, f"{where}[{at}]", depth + 1)
    _check_combined(schema, value, whole, where, depth)


def _check_type(schema: Mapping[str, Any], value: object, where: str) -> None:
    named = schema.get("type", [])
    kinds = named if isinstance(named, list) else [named]
    if kinds and not any(TYPES[kind](value) for kind in kinds):
        raise Mismatch(f"{where} is not of type {' or '.join(kinds)}")


def _check_bounds(schema: Mapping[str, Any], value: Any, where: str) -> None:
    for keyword, holds in LIMITS.items():
        if keyword in schema and TYPES["number"](value) and not holds(value, schema[keyword]):
            raise Mismatch(f"{where} breaks {keyword} {schema[keyword]}")
    for keyword, (kind, is_maximum) in SIZES.items():
        if keyword in schema and isinstance(value, kind):
            size = len(value)
            if size > schema[keyword] if is_maximum else size < schema[keyword]:
                raise Mismatch(f"{where} breaks {keyword} {schema[keyword]}")
    if "pattern" in schema and isinstance(value, str) and not re.search(schema["pattern"], value):
        raise Mismatch(f"{where} does not match the pattern {schema['pattern'][:100]!a}")


def _check_object(
    schema: Mapping[str, Any], value: Mapping[str, Any], whole: object, where: str, depth: int
) -> None:
    for name in schema.get("required", []):
        if name not in value:
            raise Mismatch(f"{where} lacks {str(name)[:80]!a}")
    properties = schema.get("properties", {})
    for name, each in value.items():
        part = properties.get(name, schema.get("additionalProperties", True))
        _check(part, each, whole, f"{where}.{name[:80]}", depth + 1)


def _check_combined(
    schema: Mapping[str, Any], value: object, whole: object, where: str, depth: int
) -> None:
    for keyword in WITH_SCHEMAS:
        if keyword not in schema:
            continue
        fitting = [each for each in schema[keyword] if _fits(each, value, whole, depth)]
        is_met = {
            "anyOf": bool(fitting),
            "oneOf": len(fitting) == 1,
            "allOf": len(fitting) == len(schema[keyword]),
        }
        if not is_met[keyword]:
            raise Mismatch(f"{where} does not fit {keyword} of its schema")
    if "not" in schema and _fits(schema["not"], value, whole, depth):
        raise Mismatch(f"{where} fits what its schema excludes")


def _fits(schema: object, value: object, whole: object, depth: int) -> bool:
    try:
        _check(schema, value, whole, "", depth + 1)
    except Mismatch:
        return False
    return True


def _equals(one: object, other: object) -> bool:
    # In Python True equals 1, in JSON it does not.
    return isinstance(one, bool) == isinstance(other, bool) and one == other
