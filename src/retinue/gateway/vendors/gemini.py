"""Google Gemini: generateContent."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any
from urllib.parse import quote, unquote

from retinue.core.conversation import Call, ModelFailed, Reply, Tool, Turn
from retinue.core.data_structures import replace_fields
from retinue.gateway.vendors.base import (
    LONGEST_MODEL_NAME,
    NOTHING,
    Document,
    Endpoint,
    Features,
    Headers,
    Rates,
    UsageReading,
    Vendor,
    VendorRequest,
    collect_names,
    count_characters,
    make_call,
    read_count,
    select_objects,
    to_reply_usage,
    to_text,
)
from retinue.gateway.vendors.request_features import (
    check_objects,
    make_feature,
    scan_modalities,
    scan_parameters,
    to_snake_keys,
)

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

_MODEL = r"/v1(?:beta|alpha)?/models/[A-Za-z0-9_][A-Za-z0-9._@+~-]*"

# Parameters and parts that concern only the model; see request_features.
_GENERATE = {
    *("model", "contents", "content", "system_instruction", "tools", "tool_config"),
    *("safety_settings", "generation_config", "labels", "requests", "generate_content_request"),
    *("task_type", "title", "output_dimensionality", "embed_content_config"),
}
_GEMINI_PARTS = {
    *("text", "inline_data", "function_call", "function_response", "thought"),
    *("thought_signature", "video_metadata", "media_resolution", "part_metadata"),
}


def _read_generate(before: UsageReading, document: Document) -> UsageReading:
    """Read Gemini answers: every event of a stream repeats the total usage so far."""
    characters = before.characters
    done = before.whole
    for candidate in document.get("candidates") or []:
        for part in (candidate.get("content") or {}).get("parts") or []:
            characters += count_characters(part.get("text"))
        done = done or bool(candidate.get("finishReason"))
    model = document.get("modelVersion") or before.model
    now = replace_fields(before, characters=characters, model=model)
    usage = document.get("usageMetadata")
    if not isinstance(usage, Mapping):
        return now
    thoughts = read_count(usage, "thoughtsTokenCount")
    asked = read_count(usage, "promptTokenCount") + read_count(usage, "toolUsePromptTokenCount")
    return replace_fields(
        now,
        input_tokens=asked,
        output_tokens=read_count(usage, "candidatesTokenCount") + thoughts,
        cached_tokens=read_count(usage, "cachedContentTokenCount"),
        reasoning_tokens=thoughts,
        whole=done,
    )


def _scan_generate(document: Document) -> Features:
    document = to_snake_keys(document)
    yield from scan_parameters(document, _GENERATE)
    for tool in check_objects(document.get("tools"), "tools"):
        for name, value in to_snake_keys(tool).items():
            if value is not None and name != "function_declarations":
                yield make_feature(name, "the tool")
    config = document.get("generation_config")
    if isinstance(config, dict):
        yield from scan_modalities(to_snake_keys(config).get("response_modalities"))
    for name in ("contents", "content", "system_instruction"):
        contents = document.get(name)
        if isinstance(contents, str):
            continue
        for content in check_objects([contents] if isinstance(contents, dict) else contents, name):
            yield from _scan_parts(content.get("parts"))
    # Batch and token-count requests contain whole requests, which need the same checks.
    inner = document.get("generate_content_request")
    for request in check_objects(document.get("requests"), "requests"):
        yield from _scan_generate(request)
    for request in check_objects(None if inner is None else [inner], "generate_content_request"):
        yield from _scan_generate(request)


def _scan_parts(parts: Any) -> Features:
    if isinstance(parts, str):
        return
    for part in check_objects([parts] if isinstance(parts, dict) else parts, "parts"):
        for name, value in to_snake_keys(part).items():
            if name not in _GEMINI_PARTS and value is not None:
                yield make_feature(name, "the part")
            if name == "function_response" and isinstance(value, dict):
                yield from _scan_parts(value.get("parts"))


class Gemini(Vendor):
    name = "gemini"
    base_url = "https://generativelanguage.googleapis.com"
    key_variables = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
    priced_as = "google"
    url_version = "/v1beta"
    models_path = "/v1beta/models"
    helper_models = (
        *("gemini-*-flash", "gemini-*-flash-preview*"),
        *("gemini-*-flash-lite", "gemini-*-flash-lite-preview*"),
    )
    endpoints = (
        Endpoint(
            method="POST",
            path=rf"{_MODEL}:(?:(?:stream)?[gG]enerateContent|(?:batchE|e)mbedContents?)",
            read_usage=_read_generate,
            find_features=_scan_generate,
            output_limits=("maxOutputTokens", "max_output_tokens"),
            text_fields=("text",),
            tool_marker=b'"functionCall"',
        ),
        Endpoint(method="POST", path=rf"{_MODEL}:countTokens", find_features=_scan_generate),
        Endpoint(method="GET", path=rf"{_MODEL}|/v1(?:beta|alpha)?/models"),
    )

    def list_models(self, path: str, document: Document) -> list[str]:
        # The path names the model. The body may name it again, and others in batches.
        named = [unquote(path).rpartition("/")[2].partition(":")[0]]
        inner = document.get("requests")
        nested = [document.get(n) for n in ("generateContentRequest", "generate_content_request")]
        for each in [document, *nested, *(inner if isinstance(inner, list) else [])]:
            if isinstance(each, dict) and each.get("model"):
                named.append(str(each["model"]))
        return [name[:LONGEST_MODEL_NAME] for name in named]

    def list_called_tools(self, document: Document) -> set[str]:
        candidates = select_objects(document.get("candidates"))
        contents = select_objects([each.get("content") for each in candidates])
        parts = [part for each in contents for part in select_objects(each.get("parts"))]
        return collect_names(part.get("functionCall") for part in parts)

    def list_offered_tools(self, request: Document) -> set[str]:
        offered: set[str] = set()
        for tool in select_objects(request.get("tools")):
            listed = to_snake_keys(tool).get("function_declarations")
            offered |= collect_names(select_objects(listed))
        return offered

    def build_authorization(self, key: str) -> Headers:
        return [("x-goog-api-key", key)]

    def build_environment(self, address: str, token: str) -> dict[str, str]:
        return {"GOOGLE_GEMINI_BASE_URL": f"{address}/gemini", "GEMINI_API_KEY": token}

    def build_error(self, status: int, code: str, message: str) -> Document:
        return {"error": {"code": status, "message": message, "status": code.upper()}}

    def build_request(
        self, model: str, token: str, turns: Sequence[Turn], tools: Sequence[Tool]
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

    def parse_reply(self, documents: Iterable[Document], rates: Rates) -> Reply:
        reading = UsageReading()
        words = ""
        source: list[Document] = []
        calls: list[Call] = []
        for document in documents:
            reading = _read_generate(reading, document)
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
                    _add_part(source, part)
        return Reply(
            text=words,
            calls=tuple(calls),
            used=to_reply_usage(reading, rates),
            source=source or None,
        )

    def build_events(self, text: str, call: Call | None = None) -> list[Document]:
        part: Document = {"functionCall": _format_call(call)} if call else {"text": text}
        content = {"role": "model", "parts": [part]}
        usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
        return [
            {
                "candidates": [{"content": content, "finishReason": "STOP"}],
                "usageMetadata": usage,
                "modelVersion": "m",
            }
        ]


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


def _add_part(parts: list[Document], part: Document) -> None:
    """Append the part; merge it into the last one if both contain only text."""
    if part == {"text": ""}:
        return
    words = part.keys() in ({"text"}, {"text", "thought"})
    if words and parts and parts[-1].keys() == part.keys():
        parts[-1] = parts[-1] | {"text": parts[-1]["text"] + part["text"]}
    else:
        parts.append(part)
