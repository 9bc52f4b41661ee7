"""Google generateContent format."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any
from urllib.parse import quote

from retinue.core.conversation import Call, ModelFailed, Reply, Tool, Turn
from retinue.gateway.vendors import usage_fields
from retinue.gateway.vendors.base import (
    NOTHING,
    Document,
    VendorRequest,
    make_call,
    to_text,
    to_used,
)
from retinue.gateway.vendors.usage_fields import Rates, UsageReading

# The first call of a turn needs the vendor's signature. A turn from an earlier attempt has lost
# it; Google documents this value as a substitute.
UNSIGNED = base64.b64encode(b"skip_thought_signature_validator").decode()

# The keywords of JSON Schema that Google accepts; it refuses others.
PLAIN = (
    *("type", "description", "enum", "required", "$ref"),
    *("minimum", "maximum", "minItems", "maxItems"),
)
NAMED = ("properties", "$defs")
LISTED = ("anyOf", "oneOf", "prefixItems")
NESTED = ("items", "additionalProperties")


def build_request(
    model: str, token: str, turns: Sequence[Turn], tools: Sequence[Tool]
) -> VendorRequest:
    document: Document = {"contents": _format_contents(turns)}
    if system := [{"text": turn.text} for turn in turns if turn.role == "system" and turn.text]:
        document["systemInstruction"] = {"parts": system}
    if tools:
        document["tools"] = [{"functionDeclarations": [_format_tool(tool) for tool in tools]}]
    name = quote(model.removeprefix("models/"), safe="")
    return VendorRequest(
        path=f"/v1beta/models/{name}:streamGenerateContent?alt=sse",
        headers={"x-goog-api-key": token},
        document=document,
    )


def _format_tool(tool: Tool) -> Document:
    return {
        "name": tool.name,
        "description": tool.description,
        "parametersJsonSchema": _trim_schema(tool.parameters),
    }


def _trim_schema(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    kept = {name: schema[name] for name in PLAIN if name in schema}
    if "const" in schema:
        kept["enum"] = [schema["const"]]
    for name in NAMED:
        if name in schema:
            kept[name] = {key: _trim_schema(value) for key, value in schema[name].items()}
    for name in LISTED:
        if name in schema:
            kept[name] = [_trim_schema(each) for each in schema[name]]
    for name in NESTED:
        if name in schema:
            kept[name] = _trim_schema(schema[name])
    return kept


def _format_contents(turns: Sequence[Turn]) -> list[Document]:
    """Return the contents; successive turns of one role are joined, tool results stay separate."""
    spoken = [turn for turn in turns if turn.role != "system"]
    sides = groupby(spoken, lambda turn: turn.role)
    return [
        {
            "role": "model" if side == "assistant" else "user",
            "parts": [part for turn in said for part in _format_parts(turn)],
        }
        for side, said in sides
    ]


def _format_parts(turn: Turn) -> list[Document]:
    if turn.call is not None:
        told = {"name": turn.call.tool, "id": turn.call.id, "response": {"output": turn.text}}
        return [{"functionResponse": told}]
    if isinstance(turn.source, list):
        return turn.source
    words: list[Document] = [{"text": turn.text}] if turn.text else []
    calls: list[Document] = [{"functionCall": _format_call(call)} for call in turn.calls]
    if calls:
        calls[0]["thoughtSignature"] = UNSIGNED
    return [*words, *calls] or [{"text": NOTHING}]


def _format_call(call: Call) -> Document:
    return {"name": call.tool, "id": call.id, "args": dict(call.arguments)}


def parse_reply(documents: Iterable[Document], rates: Rates) -> Reply:
    reading = UsageReading()
    words = ""
    source: list[Document] = []
    calls: list[Call] = []
    for document in documents:
        reading = usage_fields.read_generate(reading, document)
        if blocked := (document.get("promptFeedback") or {}).get("blockReason"):
            raise ModelFailed(f"the request was blocked: {blocked}")
        for candidate in (document.get("candidates") or [])[:1]:
            for part in (candidate.get("content") or {}).get("parts") or []:
                if asked := part.get("functionCall"):
                    calls.append(
                        make_call(asked.get("id"), asked.get("name"), asked.get("args", {}))
                    )
                    part = part | {"functionCall": _format_call(calls[-1])}
                elif not part.get("thought"):
                    words += to_text(part.get("text"))
                _join(source, part)
    return Reply(
        text=words, calls=tuple(calls), used=to_used(reading, rates), source=source or None
    )


def _join(parts: list[Document], part: Document) -> None:
    """Append the part; merge it into the last one if both contain only text."""
    if part == {"text": ""}:
        return
    words = part.keys() in ({"text"}, {"text", "thought"})
    if words and parts and parts[-1].keys() == part.keys():
        parts[-1] = parts[-1] | {"text": parts[-1]["text"] + part["text"]}
    else:
        parts.append(part)
