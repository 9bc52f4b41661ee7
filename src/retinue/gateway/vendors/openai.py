"""OpenAI chat completions format, which most other servers speak too."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from retinue.core.conversation import Reply, Tool, Turn
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

# Names for the model's reasoning. Some servers require it back in the next request.
THOUGHTS = ("reasoning_content", "reasoning")
THOUGHT_ALOUD = re.compile(r"\A\s*<think>.*?</think>\s*", re.DOTALL)


def build_request(
    model: str, token: str, turns: Sequence[Turn], tools: Sequence[Tool]
) -> VendorRequest:
    document: Document = {
        "model": model,
        "messages": [_format_message(turn) for turn in turns],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if tools:
        document["tools"] = [{"type": "function", "function": _format_tool(tool)} for tool in tools]
    return VendorRequest(
        path="/v1/chat/completions",
        headers={"authorization": f"Bearer {token}"},
        document=document,
    )


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
        message["tool_calls"] = [
            _format_call(each.id, each.tool, dict(each.arguments)) for each in turn.calls
        ]
    elif not turn.text:
        message["content"] = NOTHING
    return message


def _format_call(name: str, tool: str, arguments: Document) -> Document:
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return {"id": name, "type": "function", "function": function}


def parse_reply(documents: Iterable[Document], rates: Rates) -> Reply:
    reading = UsageReading()
    words = ""
    thoughts = dict.fromkeys(THOUGHTS, "")
    pieces: list[Document] = []  # calls, each as far as received
    for document in documents:
        reading = usage_fields.read_chat(reading, document)
        for choice in (document.get("choices") or [])[:1]:
            delta = choice.get("delta") or choice.get("message") or {}
            words += _join_text(delta.get("content"))
            for name in THOUGHTS:
                thoughts[name] += to_text(delta.get(name))
            for piece in delta.get("tool_calls") or []:
                _join(pieces, piece)
    calls = tuple(make_call(each["id"], each["name"], each["arguments"]) for each in pieces)
    source: Document = {"role": "assistant", "content": words or None}
    source |= {name: text for name, text in thoughts.items() if text}
    if calls:
        source["tool_calls"] = [
            _format_call(call.id, call.tool, dict(call.arguments)) | each["more"]
            for call, each in zip(calls, pieces, strict=True)
        ]
    return Reply(
        text=THOUGHT_ALOUD.sub("", words),
        calls=calls,
        used=to_used(reading, rates),
        source=source if words or calls else None,
    )


def _join_text(content: Any) -> str:
    # Some servers send a list of parts, and not all of them are text.
    if isinstance(content, list):
        return "".join(to_text(part.get("text")) for part in content if part.get("type") == "text")
    return to_text(content)


def _join(pieces: list[Document], piece: Document) -> None:
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
