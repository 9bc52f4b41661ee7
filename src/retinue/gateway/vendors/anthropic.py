"""Anthropic: messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

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
    select_objects,
    to_reply_usage,
    to_text,
)
from retinue.gateway.vendors.request_features import (
    check_objects,
    scan_content,
    scan_parameters,
    scan_tools,
)

VERSION = "2023-06-01"

# The format requires an output limit. Older models refuse one above what they can write, or one
# that does not fit beside a long conversation.
MOST_TOKENS = 64_000
MOST_TOKENS_OF_UNKNOWN = 16_384
MOST_TOKENS_OF_OLDER = 4_096
OLDER = (
    *("claude-3", "claude-4-", "claude-2"),
    *("claude-opus-4-0", "claude-opus-4-1", "claude-opus-4-2"),
    *("claude-sonnet-4-0", "claude-sonnet-4-2"),
)

# Parameters that concern only the model; see request_features.
_MESSAGES = {
    *("model", "messages", "system", "metadata", "stop_sequences", "stream", "temperature"),
    *("top_k", "top_p", "tools", "tool_choice", "thinking", "cache_control"),
    *("context_management", "output_config", "output_format", "diagnostics"),
}


def _read_messages(before: UsageReading, document: Document) -> UsageReading:
    """Read Anthropic messages: input tokens come first, output tokens with the last delta."""
    kind = document.get("type")
    if kind == "content_block_delta":
        delta = document.get("delta") or {}
        said = sum(
            count_characters(delta.get(name)) for name in ("text", "thinking", "partial_json")
        )
        return replace_fields(before, characters=before.characters + said)
    message = document.get("message") if kind == "message_start" else document
    usage = (message or {}).get("usage")
    if not isinstance(usage, Mapping):
        return before
    now = replace_fields(before, model=(message or {}).get("model") or before.model)
    # Anthropic's input_tokens excludes cached tokens; ours includes them.
    if "input_tokens" in usage and usage["input_tokens"] is not None:
        cached = read_count(usage, "cache_read_input_tokens")
        written = read_count(usage, "cache_creation_input_tokens")
        now = replace_fields(
            now,
            input_tokens=read_count(usage, "input_tokens") + cached + written,
            cached_tokens=cached,
            cache_written_tokens=written,
        )
    return replace_fields(
        now, output_tokens=read_count(usage, "output_tokens"), whole=kind != "message_start"
    )


def _scan_messages(document: Document) -> Features:
    yield from scan_parameters(document, _MESSAGES)
    yield from scan_tools(document.get("tools"))
    yield from scan_content(document.get("system"), "system")
    for message in check_objects(document.get("messages"), "messages"):
        yield from scan_content(message.get("content"), "messages")


class Anthropic(Vendor):
    name = "anthropic"
    base_url = "https://api.anthropic.com"
    key_variables = ("ANTHROPIC_API_KEY",)
    priced_as = "anthropic"
    url_version = "/v1"
    models_path = "/v1/models"
    helper_models = ("claude-haiku-*", "claude-*-haiku-*")
    endpoints = (
        Endpoint(
            method="POST",
            path=r"/v1/messages",
            read_usage=_read_messages,
            find_features=_scan_messages,
            output_limits=("max_tokens",),
            text_fields=("text", "thinking", "partial_json"),
            tool_marker=b'"tool_use"',
        ),
        Endpoint(method="POST", path=r"/v1/messages/count_tokens", find_features=_scan_messages),
        Endpoint(method="GET", path=rf"/v1{MODELS}"),
    )

    def list_called_tools(self, document: Document) -> set[str]:
        blocks = select_objects([document.get("content_block")])
        blocks += select_objects(document.get("content"))
        return collect_names(block for block in blocks if block.get("type") == "tool_use")

    def list_offered_tools(self, request: Document) -> set[str]:
        return collect_names(select_objects(request.get("tools")))

    def build_authorization(self, key: str) -> Headers:
        return [("x-api-key", key)]

    def build_list_headers(self, key: str | None) -> Headers:
        return [*super().build_list_headers(key), ("anthropic-version", VERSION)]

    def build_environment(self, address: str, token: str) -> dict[str, str]:
        return {"ANTHROPIC_BASE_URL": f"{address}/anthropic", "ANTHROPIC_API_KEY": token}

    def build_error(self, status: int, code: str, message: str) -> Document:
        return {"type": "error", "error": {"type": code, "message": message}}

    def build_request(
        self, model: str, token: str, turns: Sequence[Turn], tools: Sequence[Tool]
    ) -> VendorRequest:
        document: Document = {
            "model": model,
            "max_tokens": _limit_tokens(model),
            "messages": _format_messages(turns),
            "stream": True,
        }
        if system := "\n\n".join(
            turn.text for turn in turns if turn.role == "system" and turn.text
        ):
            document["system"] = system
        if tools:
            document["tools"] = [
                {
                    "name": tool.name,
                    "description": tool.description,
                    "input_schema": dict(tool.parameters),
                }
                for tool in tools
            ]
        return VendorRequest(
            path="/v1/messages",
            headers={"x-api-key": token, "anthropic-version": VERSION},
            document=document,
        )

    def parse_reply(self, documents: Iterable[Document], rates: Rates) -> Reply:
        reading = UsageReading()
        blocks: dict[int, Document] = {}
        inputs: dict[int, str] = {}  # arguments of calls, as JSON text received so far
        for document in documents:
            reading = _read_messages(reading, document)
            index = document.get("index", 0)
            if document.get("type") == "message":
                blocks = dict(enumerate(map(dict, document["content"])))
            elif document.get("type") == "content_block_start":
                blocks[index] = dict(document["content_block"])
            elif document.get("type") == "content_block_delta":
                delta = document["delta"]
                block = blocks[index]
                inputs[index] = inputs.get(index, "") + to_text(delta.get("partial_json"))
                for name in ("text", "thinking", "signature"):
                    if name in delta:
                        block[name] = to_text(block.get(name)) + delta[name]
        words = ""
        calls = []
        source = []
        for index, block in blocks.items():
            if block["type"] == "tool_use":
                call = make_call(
                    block.get("id"), block.get("name"), inputs.get(index) or block["input"]
                )
                calls.append(call)
                block = _format_call(call)
            elif block["type"] == "text":
                words += block["text"]
            if _can_return(block):
                source.append(block)
        return Reply(
            text=words,
            calls=tuple(calls),
            used=to_reply_usage(reading, rates),
            source=source or None,
        )

    def build_events(self, text: str, call: Call | None = None) -> list[Document]:
        message: Document = {"id": "x", "type": "message", "role": "assistant", "model": "m"}
        message |= {"content": [], "usage": {"input_tokens": 1, "output_tokens": 1}}
        block = _format_call(call) if call else {"type": "text", "text": text}
        delta = {"stop_reason": "tool_use" if call else "end_turn"}
        return [
            {"type": "message_start", "message": message},
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 1}},
            {"type": "message_stop"},
        ]


def _limit_tokens(model: str) -> int:
    if model.startswith(OLDER) or model in ("claude-opus-4", "claude-sonnet-4"):
        return MOST_TOKENS_OF_OLDER
    return MOST_TOKENS if model.startswith("claude-") else MOST_TOKENS_OF_UNKNOWN


def _format_messages(turns: Sequence[Turn]) -> list[Document]:
    """Return the messages; successive turns of one side become one message."""
    spoken = [turn for turn in turns if turn.role != "system"]
    sides = groupby(spoken, lambda turn: "assistant" if turn.role == "assistant" else "user")
    return [
        {"role": side, "content": [block for turn in said for block in _format_blocks(turn)]}
        for side, said in sides
    ]


def _format_blocks(turn: Turn) -> list[Document]:
    if turn.call is not None:
        told = {"type": "tool_result", "tool_use_id": turn.call.id, "content": turn.text}
        return [told]
    # Return the vendor's own blocks unchanged: thoughts carry signatures.
    if isinstance(turn.source, list):
        return turn.source
    words: list[Document] = [{"type": "text", "text": turn.text}] if turn.text.strip() else []
    blocks = [*words, *map(_format_call, turn.calls)]
    return blocks or [{"type": "text", "text": NOTHING}]


def _format_call(call: Call) -> Document:
    return {"type": "tool_use", "id": call.id, "name": call.tool, "input": dict(call.arguments)}


def _can_return(block: Document) -> bool:
    """Return whether the vendor accepts the block again: no empty text, no unsigned thought."""
    if block["type"] == "text":
        return bool(block["text"].strip())
    return block["type"] != "thinking" or bool(block.get("signature"))
