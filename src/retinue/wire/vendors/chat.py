"""OpenAI's chat completions, which nearly every other server speaks too."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from retinue.domain.conversation import Reply, Tool, Turn
from retinue.wire.vendors import readings
from retinue.wire.vendors.exchange import NOTHING, Asking, Document, called, text_of, used
from retinue.wire.vendors.rates import Rates
from retinue.wire.vendors.readings import Reading

# How servers call what a model thought before it spoke. Some want it back with the next request.
THOUGHTS = ("reasoning_content", "reasoning")
THOUGHT_ALOUD = re.compile(r"\A\s*<think>.*?</think>\s*", re.DOTALL)


def asking(model: str, token: str, turns: Sequence[Turn], tools: Sequence[Tool]) -> Asking:
    document: Document = {
        "model": model,
        "messages": [_message(turn) for turn in turns],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if tools:
        document["tools"] = [{"type": "function", "function": _function(tool)} for tool in tools]
    return Asking(
        path="/v1/chat/completions",
        headers={"authorization": f"Bearer {token}"},
        document=document,
    )


def _function(tool: Tool) -> Document:
    return {
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
    }


def _message(turn: Turn) -> Document:
    if turn.call is not None:
        return {"role": "tool", "tool_call_id": turn.call.id, "content": turn.text}
    if turn.role != "assistant":
        return {"role": turn.role, "content": turn.text}
    if isinstance(turn.source, dict):
        return turn.source
    message: Document = {"role": "assistant", "content": turn.text or None}
    if turn.calls:
        message["tool_calls"] = [
            _call(each.id, each.tool, dict(each.arguments)) for each in turn.calls
        ]
    elif not turn.text:
        message["content"] = NOTHING
    return message


def _call(name: str, tool: str, arguments: Document) -> Document:
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return {"id": name, "type": "function", "function": function}


def heard(documents: Iterable[Document], rates: Rates) -> Reply:
    reading, words = Reading(), ""
    thoughts = dict.fromkeys(THOUGHTS, "")
    pieces: list[Document] = []  # of calls, each as far as it has come
    for document in documents:
        reading = readings.chat(reading, document)
        for choice in (document.get("choices") or [])[:1]:
            delta = choice.get("delta") or choice.get("message") or {}
            words += _words(delta.get("content"))
            for name in THOUGHTS:
                thoughts[name] += text_of(delta.get(name))
            for piece in delta.get("tool_calls") or []:
                _join(pieces, piece)
    calls = tuple(called(each["id"], each["name"], each["arguments"]) for each in pieces)
    source: Document = {"role": "assistant", "content": words or None}
    source |= {name: text for name, text in thoughts.items() if text}
    if calls:
        source["tool_calls"] = [
            _call(call.id, call.tool, dict(call.arguments)) | each["more"]
            for call, each in zip(calls, pieces, strict=True)
        ]
    return Reply(
        text=THOUGHT_ALOUD.sub("", words),
        calls=calls,
        used=used(reading, rates),
        source=source if words or calls else None,
    )


def _words(content: Any) -> str:
    if isinstance(content, list):  # some servers send parts, of which not all are words
        return "".join(text_of(part.get("text")) for part in content if part.get("type") == "text")
    return text_of(content)


def _join(pieces: list[Document], piece: Document) -> None:
    """The piece is added to the call it belongs to, or begins a new one.

    It says which by its index, and by an id where servers count every call as the first.
    """
    function = piece.get("function") or {}
    index, name, tool = piece.get("index"), piece.get("id") or "", function.get("name") or ""
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
    if piece.get("extra_content"):  # what a vendor wants back with its call
        known["more"] = {"extra_content": piece["extra_content"]}
