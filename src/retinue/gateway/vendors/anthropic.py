"""Anthropic messages format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from retinue.core.conversation import Call, Reply, Tool, Turn
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

VERSION = "2023-06-01"

# The format requires an output limit. Older models refuse one above what they can write, or one
# that does not fit beside a long conversation.
MOST_TOKENS = 64_000
MOST_TOKENS_OF_STRANGERS = 16_384
MOST_TOKENS_OF_OLDER = 4_096
OLDER = (
    *("claude-3", "claude-4-", "claude-2"),
    *("claude-opus-4-0", "claude-opus-4-1", "claude-opus-4-2"),
    *("claude-sonnet-4-0", "claude-sonnet-4-2"),
)


def build_request(
    model: str, token: str, turns: Sequence[Turn], tools: Sequence[Tool]
) -> VendorRequest:
    document: Document = {
        "model": model,
        "max_tokens": _limit_tokens(model),
        "messages": _format_messages(turns),
        "stream": True,
    }
    if system := "\n\n".join(turn.text for turn in turns if turn.role == "system" and turn.text):
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


def _limit_tokens(model: str) -> int:
    if model.startswith(OLDER) or model in ("claude-opus-4", "claude-sonnet-4"):
        return MOST_TOKENS_OF_OLDER
    return MOST_TOKENS if model.startswith("claude-") else MOST_TOKENS_OF_STRANGERS


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


def parse_reply(documents: Iterable[Document], rates: Rates) -> Reply:
    reading = UsageReading()
    blocks: dict[int, Document] = {}
    inputs: dict[int, str] = {}  # arguments of calls, as JSON text received so far
    for document in documents:
        reading = usage_fields.read_messages(reading, document)
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
        text=words, calls=tuple(calls), used=to_used(reading, rates), source=source or None
    )


def _can_return(block: Document) -> bool:
    """Return whether the vendor accepts the block again: no empty text, no unsigned thought."""
    if block["type"] == "text":
        return bool(block["text"].strip())
    return block["type"] != "thinking" or bool(block.get("signature"))
