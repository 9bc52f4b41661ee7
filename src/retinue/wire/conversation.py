"""Conversations as lines of JSON: one for each turn."""

from __future__ import annotations

import json
import math
from typing import Any

from retinue.domain.conversation import Call, Turn

ROLES = {"system", "user", "assistant", "tool"}


def turn_to_json(member: str, turn: Turn, at: str) -> dict[str, Any]:
    document: dict[str, Any] = {"at": at, "member": member, "role": turn.role, "content": turn.text}
    if turn.calls:
        document["calls"] = [_call_to_json(call) for call in turn.calls]
    if turn.call is not None:
        document["call"] = _call_to_json(turn.call)
    return document


def entry_from_line(line: bytes) -> dict[str, Any] | None:
    """A turn as it stands there, fit to be told again; None where that is no JSON."""
    try:
        entry = _STRICT.decode(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def turns_from_text(text: str, member: str) -> list[Turn]:
    """What one member said and heard before; lines that are none of that are left out."""
    found = (_parse(line, member) for line in text.splitlines())
    return [turn for turn in found if turn is not None]


def _parse(line: str, member: str) -> Turn | None:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or document.get("member") != member:
        return None
    role, text = document.get("role"), document.get("content")
    if role not in ROLES or not isinstance(text, str):
        return None
    calls = document.get("calls")
    return Turn(
        role=role,
        text=text,
        calls=tuple(filter(None, map(_call, calls if isinstance(calls, list) else []))),
        call=_call(document.get("call")),
    )


def _call_to_json(call: Call) -> dict[str, Any]:
    return {"id": call.id, "tool": call.tool, "arguments": dict(call.arguments)}


def _call(document: Any) -> Call | None:
    if not isinstance(document, dict):
        return None
    name, tool, arguments = document.get("id"), document.get("tool"), document.get("arguments")
    if not isinstance(name, str) or not isinstance(tool, str) or not isinstance(arguments, dict):
        return None
    return Call(id=name, tool=tool, arguments=arguments)


def _finite(word: str) -> float:
    if not math.isfinite(number := float(word)):
        raise ValueError(f"{word[:20]} is not a number")
    return number


_STRICT = json.JSONDecoder(parse_constant=_finite, parse_float=_finite)
