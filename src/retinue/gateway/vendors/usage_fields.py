"""Token usage fields in the answers of each vendor, and token rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from retinue.core.fast_replace import replace_fields


@dataclass(frozen=True, kw_only=True)
class UsageReading:
    """Token counts read from an answer so far."""

    input_tokens: int | None = None  # includes cached tokens
    output_tokens: int | None = None  # includes reasoning tokens
    cached_tokens: int = 0
    cache_written_tokens: int = 0
    reasoning_tokens: int = 0
    characters: int = 0  # text received
    model: str = ""
    whole: bool = False  # the counts are final


def read_chat(before: UsageReading, document: dict[str, Any]) -> UsageReading:
    """Read OpenAI chat completions, completions, embeddings, and compatible servers."""
    characters = before.characters
    for choice in document.get("choices") or []:
        part = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
        characters += _count_characters(part.get("content")) + _count_characters(
            part.get("reasoning_content")
        )
        for call in part.get("tool_calls") or []:
            characters += _count_characters((call.get("function") or {}).get("arguments"))
    now = replace_fields(before, characters=characters, model=document.get("model") or before.model)
    usage = document.get("usage")
    if not isinstance(usage, Mapping):
        return _read_timings(now, document.get("timings"))
    return replace_fields(
        now,
        input_tokens=_count(usage, "prompt_tokens"),
        output_tokens=_count(usage, "completion_tokens"),
        cached_tokens=_count_detail(usage, "prompt_tokens_details", "cached_tokens"),
        reasoning_tokens=_count_detail(usage, "completion_tokens_details", "reasoning_tokens"),
        whole=True,
    )


def _read_timings(before: UsageReading, timings: object) -> UsageReading:
    """Read the counts that llama.cpp sends at the end of a stream even without `usage`."""
    if not isinstance(timings, Mapping) or "predicted_n" not in timings:
        return before
    cached = _count(timings, "cache_n")
    return replace_fields(
        before,
        input_tokens=cached + _count(timings, "prompt_n"),
        output_tokens=_count(timings, "predicted_n"),
        cached_tokens=cached,
        whole=True,
    )


def read_responses(before: UsageReading, document: dict[str, Any]) -> UsageReading:
    """Read OpenAI responses: events of a stream, or the response itself."""
    delta = document.get("delta")
    now = replace_fields(before, characters=before.characters + _count_characters(delta))
    response = document.get("response") if "response" in document else document
    if not isinstance(response, Mapping):
        return now
    now = replace_fields(now, model=response.get("model") or now.model)
    usage = response.get("usage")
    if not isinstance(usage, Mapping):
        return now
    return replace_fields(
        now,
        input_tokens=_count(usage, "input_tokens"),
        output_tokens=_count(usage, "output_tokens"),
        cached_tokens=_count_detail(usage, "input_tokens_details", "cached_tokens"),
        reasoning_tokens=_count_detail(usage, "output_tokens_details", "reasoning_tokens"),
        whole=True,
    )


def read_messages(before: UsageReading, document: dict[str, Any]) -> UsageReading:
    """Read Anthropic messages: input tokens come first, output tokens with the last delta."""
    kind = document.get("type")
    if kind == "content_block_delta":
        delta = document.get("delta") or {}
        said = sum(
            _count_characters(delta.get(name)) for name in ("text", "thinking", "partial_json")
        )
        return replace_fields(before, characters=before.characters + said)
    message = document.get("message") if kind == "message_start" else document
    usage = (message or {}).get("usage")
    if not isinstance(usage, Mapping):
        return before
    now = replace_fields(before, model=(message or {}).get("model") or before.model)
    # Anthropic's input_tokens excludes cached tokens; ours includes them.
    if "input_tokens" in usage and usage["input_tokens"] is not None:
        cached = _count(usage, "cache_read_input_tokens")
        written = _count(usage, "cache_creation_input_tokens")
        now = replace_fields(
            now,
            input_tokens=_count(usage, "input_tokens") + cached + written,
            cached_tokens=cached,
            cache_written_tokens=written,
        )
    return replace_fields(
        now, output_tokens=_count(usage, "output_tokens"), whole=kind != "message_start"
    )


def list_called_tools(document: dict[str, Any]) -> set[str]:
    """Return the tools that an Anthropic message, or an event of its stream, calls."""
    content = document.get("content")
    blocks = [document.get("content_block"), *(content if isinstance(content, list) else ())]
    uses = (each for each in blocks if isinstance(each, Mapping) and each.get("type") == "tool_use")
    return {name for use in uses if isinstance(name := use.get("name"), str)}


def list_offered_tools(request: object) -> set[str]:
    """Return the tools that a request to Anthropic offers the model."""
    tools = request.get("tools") if isinstance(request, Mapping) else None
    named = (each for each in tools or () if isinstance(each, Mapping))
    return {name for tool in named if isinstance(name := tool.get("name"), str)}


def read_generate(before: UsageReading, document: dict[str, Any]) -> UsageReading:
    """Read Gemini answers: every event of a stream repeats the total usage so far."""
    characters = before.characters
    done = before.whole
    for candidate in document.get("candidates") or []:
        for part in (candidate.get("content") or {}).get("parts") or []:
            characters += _count_characters(part.get("text"))
        done = done or bool(candidate.get("finishReason"))
    model = document.get("modelVersion") or before.model
    now = replace_fields(before, characters=characters, model=model)
    usage = document.get("usageMetadata")
    if not isinstance(usage, Mapping):
        return now
    thoughts = _count(usage, "thoughtsTokenCount")
    asked = _count(usage, "promptTokenCount") + _count(usage, "toolUsePromptTokenCount")
    return replace_fields(
        now,
        input_tokens=asked,
        output_tokens=_count(usage, "candidatesTokenCount") + thoughts,
        cached_tokens=_count(usage, "cachedContentTokenCount"),
        reasoning_tokens=thoughts,
        whole=done,
    )


def _count(section: Mapping[str, Any], name: str) -> int:
    # Providers may send anything; a wrong type or a huge number counts as 0.
    value = section.get(name)
    good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**12
    return int(value) if good and value is not None else 0


def _count_detail(usage: Mapping[str, Any], section: str, name: str) -> int:
    details = usage.get(section)
    return _count(details, name) if isinstance(details, Mapping) else 0


def _count_characters(value: object) -> int:
    return len(value) if isinstance(value, str) else 0


RATES_HEADER = "retinue-rates"


@dataclass(frozen=True, kw_only=True)
class Rates:
    """US dollars for each token, for estimates."""

    fresh: float = 0.0
    cached: float = 0.0
    cache_written: float = 0.0
    output: float = 0.0

    def compute_cost(self, reading: UsageReading) -> float:
        fresh = (reading.input_tokens or 0) - reading.cached_tokens - reading.cache_written_tokens
        return (
            max(0, fresh) * self.fresh
            + reading.cached_tokens * self.cached
            + reading.cache_written_tokens * self.cache_written
            + (reading.output_tokens or 0) * self.output
        )


def rates_to_text(rates: Rates) -> str:
    return f"{rates.fresh} {rates.cached} {rates.cache_written} {rates.output}"


def rates_from_text(text: str) -> Rates:
    """Parse rates; return zero rates if the text is malformed."""
    try:
        fresh, cached, cache_written, output = map(float, text.split())
    except ValueError:
        return Rates()
    return Rates(fresh=fresh, cached=cached, cache_written=cache_written, output=output)
