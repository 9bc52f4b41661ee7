"""Structured calls from a model that knows nothing of tools: its words are held to a schema.

Every alternative is bounded: texts, lists and objects have a greatest size and nothing refers to
itself, so that even a model that would go on for ever comes to the end of a valid call.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from retinue.domain.errors import BadInput

LONGEST_TEXT = 400  # characters, where a schema allows more or does not say
MOST_ITEMS = 8
DEEPEST = 8

Schema = Mapping[str, Any]
Tool = tuple[str, str, Schema]  # name, description, JSON schema of its arguments

_KEPT = {
    "string": ("minLength",),
    "integer": ("minimum", "maximum"),
    "number": (),
    "boolean": (),
    "null": (),
    "array": ("minItems",),
    "object": (),
}


def response_format(tools: Sequence[Tool]) -> dict[str, Any]:
    """What a request says so that its answer is exactly one call of one of the tools.

    Raises:
        BadInput: there is no tool, or a schema has no bound.
    """
    if not tools:
        raise BadInput("a call needs at least one tool", code="no_tools")
    calls = [_call(*tool) for tool in tools]
    schema = calls[0] if len(calls) == 1 else {"oneOf": calls}
    return {
        "type": "json_schema",
        "json_schema": {"name": "call", "strict": True, "schema": schema},
    }


def parse_call(reply: str, names: Collection[str]) -> tuple[str, dict[str, Any]]:
    """The tool that an answer names, and its arguments.

    Raises:
        BadInput: it is no call of one of these tools; the answer may have been cut.
    """
    try:
        document = json.loads(reply)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"the answer is not a call: {error}", code="no_call") from None
    if not isinstance(document, dict) or document.keys() != {"tool", "args"}:
        raise BadInput("the answer is not a call: it needs tool and args", code="no_call")
    name, arguments = document["tool"], document["args"]
    if not isinstance(name, str) or name not in names:
        known = ", ".join(sorted(names))
        raise BadInput(f"there is no tool {str(name)[:40]!a}; there is {known}", code="no_call")
    if not isinstance(arguments, dict):
        raise BadInput(f"the arguments of {name} are no object", code="no_call")
    return name, arguments


def _call(name: str, description: str, schema: Schema) -> dict[str, Any]:
    arguments = _bounded({"type": "object"} | dict(schema), DEEPEST)
    call = _closed({"tool": {"const": name}, "args": arguments}, ["tool", "args"])
    return call | ({"description": description} if description else {})


def _bounded(schema: Schema, depth: int) -> dict[str, Any]:
    """The same as far as a grammar can hold it, with an end to everything."""
    if depth == 0:
        raise BadInput(f"a schema is more than {DEEPEST} levels deep", code="unbounded_schema")
    if "$ref" in schema:
        raise BadInput("a schema with references has no bound", code="unbounded_schema")
    if "const" in schema:
        return {"const": schema["const"]}
    if "enum" in schema:
        return {"enum": list(schema["enum"])}
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return {"anyOf": [_bounded(each, depth - 1) for each in schema[word]]}
    kind = schema.get("type", "string")
    if isinstance(kind, list):
        return {"anyOf": [_bounded({**schema, "type": each}, depth - 1) for each in kind]}
    if kind not in _KEPT:
        raise BadInput(f"a schema has the unknown type {str(kind)[:40]!a}", code="bad_schema")
    found = {"type": kind} | {name: schema[name] for name in _KEPT[kind] if name in schema}
    if kind == "string":
        longest = _least(schema, "maxLength", LONGEST_TEXT)
        found["maxLength"] = max(found.get("minLength", 0), longest)
    elif kind == "array":
        found["items"] = _bounded(schema.get("items") or {}, depth - 1)
        found["maxItems"] = max(found.get("minItems", 0), _least(schema, "maxItems", MOST_ITEMS))
    elif kind == "object":
        parts: Schema = schema.get("properties") or {}
        inner = {name: _bounded(part, depth - 1) for name, part in parts.items()}
        return _closed(inner, [name for name in schema.get("required", ()) if name in inner])
    return found


def _closed(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _least(schema: Schema, name: str, bound: int) -> int:
    value = schema.get(name)
    return min(value, bound) if isinstance(value, int) else bound
