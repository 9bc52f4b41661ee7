"""OpenAI: chat completions, which most other servers speak too, and responses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from retinue.core.conversation import Call, Reply, Tool, Turn
from retinue.core.data_structures import replace_fields
from retinue.gateway.vendors.base import (
    MODELS,
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
    read_detail,
    select_objects,
    to_reply_usage,
    to_text,
)
from retinue.gateway.vendors.request_features import (
    check_objects,
    make_feature,
    scan_content,
    scan_media,
    scan_modalities,
    scan_parameters,
    scan_tools,
)

# Names for the model's reasoning. Some servers require it back in the next request.
THOUGHTS = ("reasoning_content", "reasoning")
THOUGHT_ALOUD = re.compile(r"\A\s*<think>.*?</think>\s*", re.DOTALL)

# Parameters that concern only the model; see request_features.
_SAMPLING = {
    *("model", "stream", "stream_options", "temperature", "top_p", "top_k", "seed", "stop"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "logprobs"),
    *("top_logprobs", "tools", "tool_choice", "parallel_tool_calls", "metadata", "user"),
    *("safety_identifier", "prompt_cache_key", "prompt_cache_retention", "verbosity"),
}
_CHAT = _SAMPLING | {
    *(
        "messages",
        "functions",
        "function_call",
        "response_format",
        "reasoning_effort",
        "prediction",
    ),
    *("audio", "reasoning", "include_reasoning", "reasoning_format", "thinking", "think"),
    *("enable_thinking", "chat_template_kwargs", "grammar", "json_schema", "format", "usage"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"),
    *("cache_prompt", "keep_alive", "suffix", "echo", "encoding_format", "input"),
    # `modalities` has its own check; `prompt` is the text of a completion.
    *("modalities", "prompt"),
}
_RESPONSES = _SAMPLING | {
    *("input", "instructions", "max_tool_calls", "reasoning", "text", "truncation", "include"),
    *("client_metadata", "context_management"),
}
# Input items of the responses endpoint that the client or the model made.
_ITEMS = {
    *("message", "function_call", "function_call_output", "custom_tool_call"),
    *("custom_tool_call_output", "local_shell_call", "local_shell_call_output"),
    *("apply_patch_call", "apply_patch_call_output", "shell_call", "shell_call_output"),
    *("tool_search_call", "tool_search_output", "reasoning", "compaction", "compaction_summary"),
    *("compaction_trigger", "additional_tools", "agent_message"),
}
_CALLS = {"function_call", "custom_tool_call"}  # items in which the model calls a named tool


def _read_chat(before: UsageReading, document: Document) -> UsageReading:
    """Read OpenAI chat completions, completions, embeddings, and compatible servers."""
    characters = before.characters
    for choice in document.get("choices") or []:
        part = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
        characters += count_characters(part.get("content")) + count_characters(
            part.get("reasoning_content")
        )
        for call in part.get("tool_calls") or []:
            characters += count_characters((call.get("function") or {}).get("arguments"))
    now = replace_fields(before, characters=characters, model=document.get("model") or before.model)
    usage = document.get("usage")
    if not isinstance(usage, Mapping):
        return _read_timings(now, document.get("timings"))
    return replace_fields(
        now,
        input_tokens=read_count(usage, "prompt_tokens"),
        output_tokens=read_count(usage, "completion_tokens"),
        cached_tokens=read_detail(usage, "prompt_tokens_details", "cached_tokens"),
        reasoning_tokens=read_detail(usage, "completion_tokens_details", "reasoning_tokens"),
        whole=True,
    )


def _read_timings(before: UsageReading, timings: object) -> UsageReading:
    """Read the counts that llama.cpp sends at the end of a stream even without `usage`."""
    if not isinstance(timings, Mapping) or "predicted_n" not in timings:
        return before
    cached = read_count(timings, "cache_n")
    return replace_fields(
        before,
        input_tokens=cached + read_count(timings, "prompt_n"),
        output_tokens=read_count(timings, "predicted_n"),
        cached_tokens=cached,
        whole=True,
    )


def _read_responses(before: UsageReading, document: Document) -> UsageReading:
    """Read OpenAI responses: events of a stream, or the response itself."""
    delta = document.get("delta")
    now = replace_fields(before, characters=before.characters + count_characters(delta))
    response = document.get("response") if "response" in document else document
    if not isinstance(response, Mapping):
        return now
    now = replace_fields(now, model=response.get("model") or now.model)
    usage = response.get("usage")
    if not isinstance(usage, Mapping):
        return now
    return replace_fields(
        now,
        input_tokens=read_count(usage, "input_tokens"),
        output_tokens=read_count(usage, "output_tokens"),
        cached_tokens=read_detail(usage, "input_tokens_details", "cached_tokens"),
        reasoning_tokens=read_detail(usage, "output_tokens_details", "reasoning_tokens"),
        whole=True,
    )


def _scan_chat(document: Document) -> Features:
    yield from scan_parameters(document, _CHAT)
    yield from scan_modalities(document.get("modalities"))
    yield from scan_tools(document.get("tools"))
    for message in check_objects(document.get("messages"), "messages"):
        yield from scan_content(message.get("content"), "messages")
    # The input of an embedding: text, token numbers or media.
    inputs = document.get("input")
    for each in inputs if isinstance(inputs, list) else [inputs]:
        if isinstance(each, dict):
            yield from scan_media(each)


def _scan_responses(document: Document) -> Features:
    yield from scan_parameters(document, _RESPONSES)
    yield from scan_tools(document.get("tools"))
    items = document.get("input")
    if isinstance(items, str):
        return
    for item in check_objects(items, "input"):
        # An item without a type is a message.
        kind = item.get("type") or "message"
        if not isinstance(kind, str) or kind not in _ITEMS:
            yield make_feature(kind, "the item")
        yield from scan_tools(item.get("tools"))
        output = item.get("output")
        for said in (item.get("content"), output if isinstance(output, list) else None):
            yield from scan_content(said, "input")


class OpenAI(Vendor):
    name = "openai"
    base_url = "https://api.openai.com/v1"
    key_variables = ("OPENAI_API_KEY",)
    priced_as = "openai"
    models_path = "/models"
    helper_models = ("gpt-*-nano",)
    endpoints = (
        Endpoint(
            method="POST",
            path=r"/v1/(chat/completions|completions|embeddings)",
            read_usage=_read_chat,
            find_features=_scan_chat,
            output_limits=("max_completion_tokens", "max_tokens"),
            text_fields=("content", "arguments", "text"),
            tool_marker=b'"tool_calls"',
        ),
        Endpoint(
            method="POST",
            path=r"/v1/responses",
            read_usage=_read_responses,
            find_features=_scan_responses,
            output_limits=("max_output_tokens",),
            text_fields=("delta",),
            tool_marker=b'_call"',
        ),
        Endpoint(method="GET", path=rf"/v1{MODELS}"),
    )

    def to_provider_path(self, path: str) -> str:
        # The base URL contains the version, which differs between compatible servers.
        return path.removeprefix("/v1")

    def list_called_tools(self, document: Document) -> set[str]:
        calls: list[Document] = []
        for choice in select_objects(document.get("choices")):
            for part in select_objects([choice.get("delta"), choice.get("message")]):
                calls += select_objects(part.get("tool_calls"))
        # Of the responses endpoint: a finished item of a stream, or those of a whole response.
        items = select_objects([document.get("item")]) + select_objects(document.get("output"))
        used = [item for item in items if item.get("type") in _CALLS]
        return collect_names([*(call.get("function") for call in calls), *used])

    def list_offered_tools(self, request: Document) -> set[str]:
        tools = select_objects(request.get("tools"))
        # A namespace holds the tools of one MCP server.
        tools += [each for tool in tools for each in select_objects(tool.get("tools"))]
        return collect_names([*tools, *(tool.get("function") for tool in tools)])

    def build_authorization(self, key: str) -> Headers:
        return [("Authorization", f"Bearer {key}")]

    def build_environment(self, address: str, token: str) -> dict[str, str]:
        return {"OPENAI_BASE_URL": f"{address}/openai/v1", "OPENAI_API_KEY": token}

    def build_error(self, status: int, code: str, message: str) -> Document:
        return {"error": {"message": message, "type": code, "param": None, "code": code}}

    def build_request(
        self, model: str, token: str, turns: Sequence[Turn], tools: Sequence[Tool]
    ) -> VendorRequest:
        document: Document = {
            "model": model,
            "messages": [_format_message(turn) for turn in turns],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if tools:
            document["tools"] = [
                {"type": "function", "function": _format_tool(tool)} for tool in tools
            ]
        return VendorRequest(
            path="/v1/chat/completions",
            headers={"authorization": f"Bearer {token}"},
            document=document,
        )

    def parse_reply(self, documents: Iterable[Document], rates: Rates) -> Reply:
        reading = UsageReading()
        words = ""
        thoughts = dict.fromkeys(THOUGHTS, "")
        pieces: list[Document] = []  # calls, each as far as received
        for document in documents:
            reading = _read_chat(reading, document)
            for choice in (document.get("choices") or [])[:1]:
                delta = choice.get("delta") or choice.get("message") or {}
                words += _join_text(delta.get("content"))
                for name in THOUGHTS:
                    thoughts[name] += to_text(delta.get(name))
                for piece in delta.get("tool_calls") or []:
                    _add_call_piece(pieces, piece)
        calls = tuple(make_call(each["id"], each["name"], each["arguments"]) for each in pieces)
        source: Document = {"role": "assistant", "content": words or None}
        source |= {name: text for name, text in thoughts.items() if text}
        if calls:
            source["tool_calls"] = [
                _format_call(call) | each["more"] for call, each in zip(calls, pieces, strict=True)
            ]
        return Reply(
            text=THOUGHT_ALOUD.sub("", words),
            calls=calls,
            used=to_reply_usage(reading, rates),
            source=source if words or calls else None,
        )

    def build_events(self, text: str, call: Call | None = None) -> list[Document]:
        chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        delta: Document = {"role": "assistant", "content": text}
        if call is not None:
            delta = {"role": "assistant", "tool_calls": [_format_call(call) | {"index": 0}]}
        last = {"index": 0, "delta": {}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return [
            {**chunk, "choices": [{"index": 0, "delta": delta}]},
            {**chunk, "choices": [last]},
            {**chunk, "choices": [], "usage": usage},
        ]


def _format_tool(tool: Tool) -> Document:
    return {
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
    }


def _format_message(turn: Turn) -> Document:
    if turn.call is not None:
        return {"role": "tool", "tool_call_id": turn.call.id, "content": turn.text}
    if turn.role != "assistant":
        return {"role": turn.role, "content": turn.text}
    if isinstance(turn.source, dict):
        return turn.source
    message: Document = {"role": "assistant", "content": turn.text or None}
    if turn.calls:
        message["tool_calls"] = [_format_call(call) for call in turn.calls]
    elif not turn.text:
        message["content"] = NOTHING
    return message


def _format_call(call: Call) -> Document:
    function = {"name": call.tool, "arguments": json.dumps(dict(call.arguments))}
    return {"id": call.id, "type": "function", "function": function}


def _join_text(content: Any) -> str:
    # Some servers send a list of parts, and not all of them are text.
    if isinstance(content, list):
        return "".join(to_text(part.get("text")) for part in content if part.get("type") == "text")
    return to_text(content)


def _add_call_piece(pieces: list[Document], piece: Document) -> None:
    """Add the piece to its call, or begin a new call.

    The index identifies the call. Some servers give every call the same index; then the id does.
    """
    function = piece.get("function") or {}
    index = piece.get("index")
    name = piece.get("id") or ""
    tool = function.get("name") or ""
    same = [each for each in pieces if each["index"] == index]
    known = same[-1] if same else None
    another = tool and (index is None or (known and name and known["id"] not in ("", name)))
    if known is None or another:
        known = {"index": index, "id": "", "name": "", "arguments": "", "more": {}}
        pieces.append(known)
    known["id"] = known["id"] or name
    known["name"] = known["name"] or tool
    arguments = function.get("arguments")
    known["arguments"] += json.dumps(arguments) if isinstance(arguments, dict) else arguments or ""
    # Gemini's OpenAI endpoint expects this field back with the call.
    if piece.get("extra_content"):
        known["more"] = {"extra_content": piece["extra_content"]}
