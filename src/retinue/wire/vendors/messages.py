"""Anthropic's messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from retinue.domain.conversation import Call, Reply, Tool, Turn
from retinue.wire.vendors import readings
from retinue.wire.vendors.exchange import NOTHING, Asking, Document, called, text_of, used
from retinue.wire.vendors.rates import Rates
from retinue.wire.vendors.readings import Reading

VERSION = "2023-06-01"

# An answer needs a bound. Older models refuse one that is beyond what they can write, or that
# would not fit beside a long conversation.
MOST_TOKENS = 64_000
MOST_TOKENS_OF_STRANGERS = 16_384
MOST_TOKENS_OF_OLDER = 4_096
OLDER = (
    *("claude-3", "claude-4-", "claude-2"),
    *("claude-opus-4-0", "claude-opus-4-1", "claude-opus-4-2"),
    *("claude-sonnet-4-0", "claude-sonnet-4-2"),
)


def asking(model: str, token: str, turns: Sequence[Turn], tools: Sequence[Tool]) -> Asking:
    document: Document = {
        "model": model,
        "max_tokens": _most_tokens(model),
        "messages": _messages(turns),
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
    return Asking(
        path="/v1/messages",
        headers={"x-api-key": token, "anthropic-version": VERSION},
        document=document,
    )


def _most_tokens(model: str) -> int:
    if model.startswith(OLDER) or model in ("claude-opus-4", "claude-sonnet-4"):
        return MOST_TOKENS_OF_OLDER
    return MOST_TOKENS if model.startswith("claude-") else MOST_TOKENS_OF_STRANGERS


def _messages(turns: Sequence[Turn]) -> list[Document]:
    """What follows each other from one side goes in one message."""
    spoken = [turn for turn in turns if turn.role != "system"]
    sides = groupby(spoken, lambda turn: "assistant" if turn.role == "assistant" else "user")
    return [
        {"role": side, "content": [block for turn in said for block in _blocks(turn)]}
        for side, said in sides
    ]


def _blocks(turn: Turn) -> list[Document]:
    if turn.call is not None:
        told = {"type": "tool_result", "tool_use_id": turn.call.id, "content": turn.text}
        return [told]
    if isinstance(turn.source, list):
        return turn.source
    words: list[Document] = [{"type": "text", "text": turn.text}] if turn.text.strip() else []
    blocks = [*words, *map(_call, turn.calls)]
    return blocks or [{"type": "text", "text": NOTHING}]


def _call(call: Call) -> Document:
    return {"type": "tool_use", "id": call.id, "name": call.tool, "input": dict(call.arguments)}


def heard(documents: Iterable[Document], rates: Rates) -> Reply:
    reading = Reading()
    blocks: dict[int, Document] = {}
    inputs: dict[int, str] = {}  # of calls, as text that may not be whole yet
    for document in documents:
        reading = readings.messages(reading, document)
        index = document.get("index", 0)
        if document.get("type") == "message":
            blocks = dict(enumerate(map(dict, document["content"])))
        elif document.get("type") == "content_block_start":
            blocks[index] = dict(document["content_block"])
        elif document.get("type") == "content_block_delta":
            delta, block = document["delta"], blocks[index]
            inputs[index] = inputs.get(index, "") + text_of(delta.get("partial_json"))
            for name in ("text", "thinking", "signature"):
                if name in delta:
                    block[name] = text_of(block.get(name)) + delta[name]
    words, calls, source = "", [], []
    for index, block in blocks.items():
        if block["type"] == "tool_use":
            call = called(block.get("id"), block.get("name"), inputs.get(index) or block["input"])
            calls.append(call)
            block = _call(call)
        elif block["type"] == "text":
            words += block["text"]
        if _goes_back(block):
            source.append(block)
    return Reply(text=words, calls=tuple(calls), used=used(reading, rates), source=source or None)


def _goes_back(block: Document) -> bool:
    """Whether it can be said again: empty words and thoughts that nobody signed are refused."""
    if block["type"] == "text":
        return bool(block["text"].strip())
    return block["type"] != "thinking" or bool(block.get("signature"))
