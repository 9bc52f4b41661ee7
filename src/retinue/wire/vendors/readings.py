"""What each vendor says of an answer's cost, and where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from retinue.domain.changing import changed


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Tokens, as far as the answer told them."""

    input_tokens: int | None = None  # with those that came from a cache
    output_tokens: int | None = None  # with those spent on reasoning
    cached_tokens: int = 0
    cache_written_tokens: int = 0
    reasoning_tokens: int = 0
    characters: int = 0  # of text that passed
    model: str = ""
    whole: bool = False  # it was the last word on its cost


def chat(before: Reading, document: dict[str, Any]) -> Reading:
    """OpenAI chat completions, completions, embeddings, and all who speak like them."""
    characters = before.characters
    for choice in document.get("choices") or []:
        part = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
        characters += _length(part.get("content")) + _length(part.get("reasoning_content"))
        for call in part.get("tool_calls") or []:
            characters += _length((call.get("function") or {}).get("arguments"))
    now = changed(before, characters=characters, model=document.get("model") or before.model)
    usage = document.get("usage")
    if not isinstance(usage, Mapping):
        return _timed(now, document.get("timings"))
    return changed(
        now,
        input_tokens=_count(usage, "prompt_tokens"),
        output_tokens=_count(usage, "completion_tokens"),
        cached_tokens=_detail(usage, "prompt_tokens_details", "cached_tokens"),
        reasoning_tokens=_detail(usage, "completion_tokens_details", "reasoning_tokens"),
        whole=True,
    )


def _timed(before: Reading, timings: object) -> Reading:
    """What llama.cpp says at the end of a stream even when nobody asked for its usage."""
    if not isinstance(timings, Mapping) or "predicted_n" not in timings:
        return before
    cached = _count(timings, "cache_n")
    return changed(
        before,
        input_tokens=cached + _count(timings, "prompt_n"),
        output_tokens=_count(timings, "predicted_n"),
        cached_tokens=cached,
        whole=True,
    )


def responses(before: Reading, document: dict[str, Any]) -> Reading:
    """OpenAI responses: events of a stream, or the response itself."""
    delta = document.get("delta")
    now = changed(before, characters=before.characters + _length(delta))
    response = document.get("response") if "response" in document else document
    if not isinstance(response, Mapping):
        return now
    now = changed(now, model=response.get("model") or now.model)
    usage = response.get("usage")
    if not isinstance(usage, Mapping):
        return now
    return changed(
        now,
        input_tokens=_count(usage, "input_tokens"),
        output_tokens=_count(usage, "output_tokens"),
        cached_tokens=_detail(usage, "input_tokens_details", "cached_tokens"),
        reasoning_tokens=_detail(usage, "output_tokens_details", "reasoning_tokens"),
        whole=True,
    )


def messages(before: Reading, document: dict[str, Any]) -> Reading:
    """Anthropic messages: what was read comes first, what was written with the last delta."""
    kind = document.get("type")
    if kind == "content_block_delta":
        delta = document.get("delta") or {}
        said = sum(_length(delta.get(name)) for name in ("text", "thinking", "partial_json"))
        return changed(before, characters=before.characters + said)
    message = document.get("message") if kind == "message_start" else document
    usage = (message or {}).get("usage")
    if not isinstance(usage, Mapping):
        return before
    now = changed(before, model=(message or {}).get("model") or before.model)
    if "input_tokens" in usage and usage["input_tokens"] is not None:
        cached = _count(usage, "cache_read_input_tokens")
        written = _count(usage, "cache_creation_input_tokens")
        now = changed(
            now,
            input_tokens=_count(usage, "input_tokens") + cached + written,
            cached_tokens=cached,
            cache_written_tokens=written,
        )
    return changed(now, output_tokens=_count(usage, "output_tokens"), whole=kind != "message_start")


def called(document: dict[str, Any]) -> set[str]:
    """The tools that are called by an Anthropic message, or by a piece of its stream."""
    content = document.get("content")
    blocks = [document.get("content_block"), *(content if isinstance(content, list) else ())]
    uses = (each for each in blocks if isinstance(each, Mapping) and each.get("type") == "tool_use")
    return {name for use in uses if isinstance(name := use.get("name"), str)}


def offered(request: object) -> set[str]:
    """The tools that a request to Anthropic lets the model call."""
    tools = request.get("tools") if isinstance(request, Mapping) else None
    named = (each for each in tools or () if isinstance(each, Mapping))
    return {name for tool in named if isinstance(name := tool.get("name"), str)}


def generate(before: Reading, document: dict[str, Any]) -> Reading:
    """Gemini: every piece of a stream repeats the whole cost so far."""
    characters, done = before.characters, before.whole
    for candidate in document.get("candidates") or []:
        for part in (candidate.get("content") or {}).get("parts") or []:
            characters += _length(part.get("text"))
        done = done or bool(candidate.get("finishReason"))
    model = document.get("modelVersion") or before.model
    now = changed(before, characters=characters, model=model)
    usage = document.get("usageMetadata")
    if not isinstance(usage, Mapping):
        return now
    thoughts = _count(usage, "thoughtsTokenCount")
    asked = _count(usage, "promptTokenCount") + _count(usage, "toolUsePromptTokenCount")
    return changed(
        now,
        input_tokens=asked,
        output_tokens=_count(usage, "candidatesTokenCount") + thoughts,
        cached_tokens=_count(usage, "cachedContentTokenCount"),
        reasoning_tokens=thoughts,
        whole=done,
    )


def _count(section: Mapping[str, Any], name: str) -> int:
    value = section.get(name)
    good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**12
    return int(value) if good and value is not None else 0


def _detail(usage: Mapping[str, Any], section: str, name: str) -> int:
    details = usage.get(section)
    return _count(details, name) if isinstance(details, Mapping) else 0


def _length(value: object) -> int:
    return len(value) if isinstance(value, str) else 0
