"""Validation of tool arguments. Errors name the argument and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from retinue.core.errors import BadInput
from retinue.core.policy import MAX_SECONDS
from retinue.delegation.tool_definitions import build_definitions
from retinue.delegation.tool_schemas import Schema, ToolLimits

PATHS = 'use [] for none, ["./"] for everything below the working folder, or single paths'
# Hints for required arguments that are missing.
HINTS = {"task": "say what the subagent is to do", "context_paths": PATHS}
# Default limits suffice: only the kinds of the arguments are checked here, the steward checks
# the limits of the task.
TAKES = {each.name: each.takes for each in build_definitions(ToolLimits())}


def check_arguments(tool: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked arguments of a call, without those that are null.

    Raises:
        BadInput: an argument is unknown, missing or of the wrong type; names it, with its index
            within tasks.
    """
    return _check_kind(TAKES[tool], given, where=tool)


def _check_kind(
    takes: Mapping[str, Any], given: Mapping[str, Any], *, where: str, within: str = ""
) -> dict[str, Any]:
    known = takes["properties"]
    for name in given:
        if name not in known:
            raise _refuse_unknown(where, name, known)
    found = {name: value for name, value in given.items() if value is not None}
    for name in takes.get("required", ()):
        if name not in found:
            hint = HINTS.get(name, "")
            raise BadInput(f"{where}: {name} is missing", code="invalid_request", hint=hint)
    return {name: _parse_value(known[name], within + name, value) for name, value in found.items()}


def _parse_value(schema: Schema, name: str, value: Any) -> Any:
    match schema["type"]:
        case "string":
            return _parse_text(name, value)
        case "boolean":
            return _parse_flag(name, value)
        case "number":
            return _parse_seconds(name, value)
    return (
        _parse_paths(name, value)
        if schema["items"]["type"] == "string"
        else _parse_tasks(schema, value)
    )


def _parse_text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _make_error(name, "a text that is not empty", value)
    return value


def _parse_flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _make_error(name, "true or false", value)
    return value


def _parse_seconds(name: str, value: Any) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    # Compare before converting: float() of a huge integer raises OverflowError.
    if not number or not 0 <= value <= MAX_SECONDS:
        raise _make_error(name, f"a number of seconds, at most {MAX_SECONDS}", value)
    return float(value)


def _parse_paths(name: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise _make_error(name, "a list of paths", value, hint=PATHS)
    return value


def _parse_tasks(schema: Schema, value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise BadInput(
            "tasks must be a list with at least one task",
            code="invalid_request",
            hint='for example [{"task": "…", "context_paths": []}]',
        )
    found = []
    for index, item in enumerate(value):
        where = f"tasks[{index}]"
        if not isinstance(item, Mapping):
            raise _make_error(where, "an object", item)
        found.append(_check_kind(schema["items"], item, where=where, within=f"{where}."))
    return found


def _refuse_unknown(where: str, name: object, known: Iterable[str]) -> BadInput:
    near = difflib.get_close_matches(str(name), known, 1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known) or 'none'}"
    said = f"{where}: unknown argument {str(name)[:40]!a}"
    return BadInput(said, code="invalid_request", hint=hint)


def _make_error(name: str, expected: str, value: Any, hint: str = "") -> BadInput:
    shown = ascii(value)[:40]
    return BadInput(f"{name} must be {expected}, not {shown}", code="invalid_request", hint=hint)
