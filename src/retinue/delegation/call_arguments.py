"""Validation of tool arguments by the tools' JSON Schemas. Errors name the argument and the fix.

It covers the part of JSON Schema that the tools use. The library jsonschema takes 60 ms to import
and words its errors for programmers; the readers here are models.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from retinue.core.errors import BadInput
from retinue.core.policy import MAX_SECONDS
from retinue.delegation.tool_definitions import build_definitions
from retinue.delegation.tool_schemas import Schema, ToolLimits

PATHS = 'use [] for none, ["./"] for everything below the working folder, or single paths'
# Hints by the name of the argument.
HINTS = {
    "task": "say what the subagent is to do",
    "context_paths": PATHS,
    "context_files": PATHS,
    "tasks": 'for example [{"task": "…", "context_paths": []}]',
}
# Default limits suffice: only the kinds of the arguments are checked here, the steward checks
# the limits and names of the task.
TAKES = {each.name: each.takes for each in build_definitions(ToolLimits())}


def check_arguments(tool: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked arguments of a call, without those that are null.

    Raises:
        BadInput: an argument is unknown, missing or of the wrong type; names it, with its index
            within tasks.
    """
    return _check_object(TAKES[tool], given, where=tool)


def _check_object(
    schema: Mapping[str, Any], given: Mapping[str, Any], *, where: str, prefix: str = ""
) -> dict[str, Any]:
    known = schema["properties"]
    for name in given:
        if name not in known:
            raise _make_unknown_error(where, name, known)
    found = {name: value for name, value in given.items() if value is not None}
    for name in schema.get("required", ()):
        if name not in found:
            hint = HINTS.get(name, "")
            raise BadInput(f"{where}: {name} is missing", code="invalid_request", hint=hint)
    return {name: _check_value(known[name], prefix + name, each) for name, each in found.items()}


def _check_value(schema: Schema, name: str, value: Any) -> Any:
    kind = schema["type"]
    if kind == "object":
        if not isinstance(value, Mapping):
            raise _make_error(name, "an object", value)
        # A schema without properties allows any; the steward checks those.
        known = "properties" in schema
        return _check_object(schema, value, where=name, prefix=f"{name}.") if known else value
    if kind == "array":
        return _check_items(schema, name, value)
    if kind == "boolean" and not isinstance(value, bool):
        raise _make_error(name, "true or false", value)
    if kind == "string" and (not isinstance(value, str) or not value.strip()):
        raise _make_error(name, "a text that is not empty", value)
    if kind in ("number", "integer"):
        return _check_number(schema, name, value)
    return value


def _check_number(schema: Schema, name: str, value: Any) -> float:
    whole = schema["type"] == "integer"
    kinds = int if whole else int | float
    number = isinstance(value, kinds) and not isinstance(value, bool)
    most = schema.get("maximum", MAX_SECONDS)
    # Compare before converting: float() of a huge integer raises OverflowError.
    if not number or not 0 <= value <= most:
        what = "a whole number" if whole else "a number of seconds"
        raise _make_error(name, f"{what}, at most {most}", value)
    return int(value) if whole else float(value)


def _check_items(schema: Schema, name: str, value: Any) -> list[Any]:
    items = schema["items"]
    last = name.rpartition(".")[2]
    hint = HINTS.get(last, "")
    if items["type"] == "string":
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise _make_error(name, "a list of texts", value, hint=hint)
        return value
    if not isinstance(value, list) or not value:
        words = f"{name} must be a list with at least one {last.removesuffix('s')}"
        raise BadInput(words, code="invalid_request", hint=hint)
    return [_check_value(items, f"{name}[{index}]", each) for index, each in enumerate(value)]


def _make_unknown_error(where: str, name: object, known: Iterable[str]) -> BadInput:
    near = difflib.get_close_matches(str(name), known, 1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known) or 'none'}"
    words = f"{where}: unknown argument {str(name)[:40]!a}"
    return BadInput(words, code="invalid_request", hint=hint)


def _make_error(name: str, expected: str, value: Any, hint: str = "") -> BadInput:
    shown = ascii(value)[:40]
    return BadInput(f"{name} must be {expected}, not {shown}", code="invalid_request", hint=hint)
