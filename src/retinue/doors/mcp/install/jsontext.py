"""Members put into and taken out of JSON text, every other character left as it was."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from retinue.domain.errors import BadInput

_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class Member:
    key: str
    start: int  # of its key
    value: int
    end: int


def put(text: str, path: Sequence[str], value: Any, where: str) -> str:
    """The text with the value at the path; objects on the way are made where missing.

    Raises:
        BadInput: the text is no JSON object, or something on the way is none.
    """
    text = text if text.strip() else "{}\n"
    return _put(text, _outer(text, where), list(path), value, 1, where)


def take(text: str, path: Sequence[str], where: str) -> str:
    """The text without what is at the path, nor objects that this leaves empty."""
    start = _outer(text, where)
    for key in path[:-1]:
        found = _find(_members(text, start, where), key)
        if found is None or text[found.value] != "{":
            return text
        start = found.value
    members = _members(text, start, where)
    found = _find(members, path[-1])
    if found is None:
        return text
    if len(members) == 1 and len(path) > 1:
        return take(text, path[:-1], where)
    if len(members) == 1:
        end = _skip(text, found.end)
        return text[: start + 1] + text[end:]
    at = members.index(found)
    if at == 0:
        return text[: found.start] + text[members[1].start :]
    return text[: members[at - 1].end] + text[found.end :]


def _put(text: str, start: int, path: list[str], value: Any, depth: int, where: str) -> str:
    members = _members(text, start, where)
    found = _find(members, path[0])
    if found is not None and len(path) > 1:
        if text[found.value] != "{":
            raise _odd(where, f"{path[0]} is no object")
        return _put(text, found.value, path[1:], value, depth + 1, where)
    for key in reversed(path[1:]):
        value = {key: value}
    indent = _indent(text)
    pad = "\n" + indent * depth
    shown = json.dumps(value, indent=indent, ensure_ascii=False).replace("\n", pad)
    if found is not None:
        same = _DECODER.raw_decode(text, found.value)[0] == value
        return text if same else text[: found.value] + shown + text[found.end :]
    entry = f"{pad}{json.dumps(path[0])}: {shown}"
    if members:
        return text[: members[-1].end] + "," + entry + text[members[-1].end :]
    close = _skip(text, start + 1)
    return text[: start + 1] + entry + "\n" + indent * (depth - 1) + text[close:]


def _outer(text: str, where: str) -> int:
    start = _skip(text, 0)
    if text[start : start + 1] != "{":
        raise _odd(where, "it is no JSON object")
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _odd(where, str(error)) from None
    return start


def _members(text: str, start: int, where: str) -> list[Member]:
    """The members of the object that starts there; the text is known to be JSON."""
    found: list[Member] = []
    at = _skip(text, start + 1)
    while text[at] != "}":
        key, after = _DECODER.raw_decode(text, at)
        value = _skip(text, _skip(text, after) + 1)
        _, end = _DECODER.raw_decode(text, value)
        if _find(found, key) is not None:
            raise _odd(where, f"{key} stands there twice")
        found.append(Member(key, at, value, end))
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return found


def _find(members: Sequence[Member], key: str) -> Member | None:
    return next((each for each in members if each.key == key), None)


def _indent(text: str) -> str:
    found = re.search(r"\n([ \t]+)\S", text)
    return found.group(1) if found else "  "


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _odd(where: str, why: str) -> BadInput:
    return BadInput(
        f"{where} cannot be changed safely: {why}",
        code="bad_file",
        hint="mend it, or add the entry by hand: see docs/how-to/mcp.md",
    )
