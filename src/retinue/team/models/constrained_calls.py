"""Tool calls from a model without tool support: its output is constrained by a JSON Schema.

The schema is bounded: texts and lists have a maximum size and nothing is recursive. So even a
model that would repeat itself for ever reaches the end of a valid call.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from retinue.core.errors import BadInput

LONGEST_TEXT = 400  # characters, if the schema allows more or sets no limit
MOST_ITEMS = 8
DEEPEST = 8

Schema = Mapping[str, Any]
Tool = tuple[str, str, Schema]  # name, description, JSON schema of its arguments

# Keywords that grammars of local servers support, by type; all others are dropped.
_KEPT = {
    "string": ("minLength",),
    "integer": ("minimum", "maximum"),
    "number": (),
    "boolean": (),
    "null": (),
    "array": ("minItems",),
    "object": (),
}


def build_response_format(tools: Sequence[Tool]) -> dict[str, Any]:
    """Return the response_format that constrains an answer to one call of one of the tools.

    Raises:
        BadInput: there is no tool, or a schema cannot be bounded.
    """
    if not tools:
        raise BadInput("a call needs at least one tool", code="no_tools")
    calls = [_build_call_schema(*tool) for tool in tools]
    schema = calls[0] if len(calls) == 1 else {"oneOf": calls}
    return {
        "type": "json_schema",
        "json_schema": {"name": "call", "strict": True, "schema": schema},
    }


def parse_call(reply: str, names: Collection[str]) -> tuple[str, dict[str, Any]]:
    """Return the name and the arguments of the call in an answer.

    Raises:
        BadInput: the answer is not a call of one of these tools.
    """
    # The schema does not guarantee a valid call: a token limit may cut the answer.
    try:
        document = json.loads(reply)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"the answer is not a call: {error}", code="no_call") from None
    if not isinstance(document, dict) or document.keys() != {"tool", "args"}:
        raise BadInput("the answer is not a call: it needs tool and args", code="no_call")
    name = document["tool"]
    arguments = document["args"]
    if not isinstance(name, str) or name not in names:
        known = ", ".join(sorted(names))
        raise BadInput(f"there is no tool {str(name)[:40]!a}; there is {known}", code="no_call")
    if not isinstance(arguments, dict):
        raise BadInput(f"the arguments of {name} are not an object", code="no_call")
    return name, arguments


def _build_call_schema(name: str, description: str, schema: Schema) -> dict[str, Any]:
    arguments = _limit_schema({"type": "object"} | dict(schema), DEEPEST)
    call = _make_object_schema({"tool": {"const": name}, "args": arguments}, ["tool", "args"])
    return call | ({"description": description} if description else {})


def _limit_schema(schema: Schema, depth: int) -> dict[str, Any]:
    """Return the schema with only supported keywords and with all sizes limited."""
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
            return {"anyOf": [_limit_schema(each, depth - 1) for each in schema[word]]}
    kind = schema.get("type", "string")
    if isinstance(kind, list):
        return {"anyOf": [_limit_schema({**schema, "type": each}, depth - 1) for each in kind]}
    if kind not in _KEPT:
        raise BadInput(f"a schema has the unknown type {str(kind)[:40]!a}", code="bad_schema")
    found = {"type": kind} | {name: schema[name] for name in _KEPT[kind] if name in schema}
    if kind == "string":
        longest = _limit_size(schema, "maxLength", LONGEST_TEXT)
        found["maxLength"] = max(found.get("minLength", 0), longest)
    elif kind == "array":
        found["items"] = _limit_schema(schema.get("items") or {}, depth - 1)
        found["maxItems"] = max(
            found.get("minItems", 0), _limit_size(schema, "maxItems", MOST_ITEMS)
        )
    elif kind == "object":
        parts: Schema = schema.get("properties") or {}
        inner = {name: _limit_schema(part, depth - 1) for name, part in parts.items()}
        return _make_object_schema(
            inner, [name for name in schema.get("required", ()) if name in inner]
        )
    return found


def _make_object_schema(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _limit_size(schema: Schema, name: str, bound: int) -> int:
    value = schema.get(name)
    return min(value, bound) if isinstance(value, int) else bound
