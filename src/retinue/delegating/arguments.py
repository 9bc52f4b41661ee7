"""The arguments of a tool call: refused with the place and the fix, or as the tool needs them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from retinue.delegating.schemas import Schema
from retinue.delegating.terms import Terms
from retinue.delegating.tools import definitions
from retinue.domain.errors import BadInput
from retinue.domain.policy import MAX_SECONDS

PATHS = 'use [] for none, ["./"] for everything below the working folder, or single paths'
HINTS = {"task": "say what the subagent is to do", "context_paths": PATHS}  # where it is missing
TAKES = {each.name: each.takes for each in definitions(Terms())}


def checked(tool: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments, each of its kind and none too many; what is null counts as left out.

    Raises:
        BadInput: names the argument, within tasks its index, and what to change.
    """
    return _fitting(TAKES[tool], given, where=tool)


def _fitting(
    takes: Mapping[str, Any], given: Mapping[str, Any], *, where: str, within: str = ""
) -> dict[str, Any]:
    known = takes["properties"]
    for name in given:
        if name not in known:
            raise _unknown(where, name, known)
    found = {name: value for name, value in given.items() if value is not None}
    for name in takes.get("required", ()):
        if name not in found:
            hint = HINTS.get(name, "")
            raise BadInput(f"{where}: {name} is missing", code="invalid_request", hint=hint)
    return {name: _value(known[name], within + name, value) for name, value in found.items()}


def _value(schema: Schema, name: str, value: Any) -> Any:
    match schema["type"]:
        case "string":
            return _text(name, value)
        case "boolean":
            return _flag(name, value)
        case "number":
            return _seconds(name, value)
    return _paths(name, value) if schema["items"]["type"] == "string" else _tasks(schema, value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _wrong(name, "a text that is not empty", value)
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, "true or false", value)
    return value


def _seconds(name: str, value: Any) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= MAX_SECONDS:  # which no whole number is too large for
        raise _wrong(name, f"a number of seconds, at most {MAX_SECONDS}", value)
    return float(value)


def _paths(name: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise _wrong(name, "a list of paths", value, hint=PATHS)
    return value


def _tasks(schema: Schema, value: Any) -> list[dict[str, Any]]:
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
            raise _wrong(where, "an object", item)
        found.append(_fitting(schema["items"], item, where=where, within=f"{where}."))
    return found


def _unknown(where: str, name: object, known: Iterable[str]) -> BadInput:
    near = difflib.get_close_matches(str(name), known, 1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known) or 'none'}"
    said = f"{where}: unknown argument {str(name)[:40]!a}"
    return BadInput(said, code="invalid_request", hint=hint)


def _wrong(name: str, expected: str, value: Any, hint: str = "") -> BadInput:
    shown = ascii(value)[:40]
    return BadInput(f"{name} must be {expected}, not {shown}", code="invalid_request", hint=hint)
