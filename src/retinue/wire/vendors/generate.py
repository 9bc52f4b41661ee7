"""Google's generateContent."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any
from urllib.parse import quote

from retinue.domain.conversation import Call, ModelFailed, Reply, Tool, Turn
from retinue.wire.vendors import readings
from retinue.wire.vendors.exchange import (
    NOTHING,
    Asking,
    Document,
    called,
    text_of,
    used,
)
from retinue.wire.vendors.rates import Rates
from retinue.wire.vendors.readings import Reading

# The first call of a turn needs the vendor's signature. What was said in an earlier attempt has
# lost its own; this one is documented to stand in for it.
UNSIGNED = base64.b64encode(b"skip_thought_signature_validator").decode()

# All of JSON Schema that is taken; more is refused.
PLAIN = (
    *("type", "description", "enum", "required", "$ref"),
    *("minimum", "maximum", "minItems", "maxItems"),
)
NAMED = ("properties", "$defs")
LISTED = ("anyOf", "oneOf", "prefixItems")
NESTED = ("items", "additionalProperties")


def asking(model: str, token: str, turns: Sequence[Turn], tools: Sequence[Tool]) -> Asking:
    document: Document = {"contents": _contents(turns)}
    if system := [{"text": turn.text} for turn in turns if turn.role == "system" and turn.text]:
        document["systemInstruction"] = {"parts": system}
    if tools:
        document["tools"] = [{"functionDeclarations": [_declaration(tool) for tool in tools]}]
    name = quote(model.removeprefix("models/"), safe="")
    return Asking(
        path=f"/v1beta/models/{name}:streamGenerateContent?alt=sse",
        headers={"x-goog-api-key": token},
        document=document,
    )


def _declaration(tool: Tool) -> Document:
    return {
        "name": tool.name,
        "description": tool.description,
        "parametersJsonSchema": _schema(tool.parameters),
    }


def _schema(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    kept = {name: schema[name] for name in PLAIN if name in schema}
    if "const" in schema:
        kept["enum"] = [schema["const"]]
    for name in NAMED:
        if name in schema:
            kept[name] = {key: _schema(value) for key, value in schema[name].items()}
    for name in LISTED:
        if name in schema:
            kept[name] = [_schema(each) for each in schema[name]]
    for name in NESTED:
        if name in schema:
            kept[name] = _schema(schema[name])
    return kept


def _contents(turns: Sequence[Turn]) -> list[Document]:
    """What follows each other from one side goes together; what tools said, by itself."""
    spoken = [turn for turn in turns if turn.role != "system"]
    sides = groupby(spoken, lambda turn: turn.role)
    return [
        {
            "role": "model" if side == "assistant" else "user",
            "parts": [part for turn in said for part in _parts(turn)],
        }
        for side, said in sides
    ]


def _parts(turn: Turn) -> list[Document]:
    if turn.call is not None:
        told = {"name": turn.call.tool, "id": turn.call.id, "response": {"output": turn.text}}
        return [{"functionResponse": told}]
    if isinstance(turn.source, list):
        return turn.source
    words: list[Document] = [{"text": turn.text}] if turn.text else []
    calls: list[Document] = [{"functionCall": _call(call)} for call in turn.calls]
    if calls:
        calls[0]["thoughtSignature"] = UNSIGNED
    return [*words, *calls] or [{"text": NOTHING}]


def _call(call: Call) -> Document:
    return {"name": call.tool, "id": call.id, "args": dict(call.arguments)}


def heard(documents: Iterable[Document], rates: Rates) -> Reply:
    reading, words = Reading(), ""
    source: list[Document] = []
    calls: list[Call] = []
    for document in documents:
        reading = readings.generate(reading, document)
        if blocked := (document.get("promptFeedback") or {}).get("blockReason"):
            raise ModelFailed(f"the request was blocked: {blocked}")
        for candidate in (document.get("candidates") or [])[:1]:
            for part in (candidate.get("content") or {}).get("parts") or []:
                if asked := part.get("functionCall"):
                    calls.append(called(asked.get("id"), asked.get("name"), asked.get("args", {})))
                    part = part | {"functionCall": _call(calls[-1])}
                elif not part.get("thought"):
                    words += text_of(part.get("text"))
                _join(source, part)
    return Reply(text=words, calls=tuple(calls), used=used(reading, rates), source=source or None)


def _join(parts: list[Document], part: Document) -> None:
    """As one part where it only goes on with the words of the last; others stay as they came."""
    if part == {"text": ""}:
        return
    words = part.keys() in ({"text"}, {"text", "thought"})
    if words and parts and parts[-1].keys() == part.keys():
        parts[-1] = parts[-1] | {"text": parts[-1]["text"] + part["text"]}
    else:
        parts.append(part)
