"""Editing of JSON text that leaves every other character as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from retinue.core.errors import BadInput

_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class JsonMember:
    """Member of an object, with its offsets in the text."""

    key: str
    start: int  # of the key
    value: int  # of the value
    end: int


def put(text: str, path: Sequence[str], value: Any, where: str) -> str:
    """Return the text with the value at the path; missing objects on the path are created.

    Raises:
        BadInput: the text, or a value on the path, is no JSON object.
    """
    text = text if text.strip() else "{}\n"
    return _put(text, _find_outer(text, where), list(path), value, 1, where)


def take(text: str, path: Sequence[str], where: str) -> str:
    """Return the text without the value at the path and without objects that become empty.

    Raises:
        BadInput: the text is no JSON object.
    """
    start = _find_outer(text, where)
    for key in path[:-1]:
        found = _find(_list_members(text, start, where), key)
        if found is None or text[found.value] != "{":
            return text
        start = found.value
    members = _list_members(text, start, where)
    found = _find(members, path[-1])
    if found is None:
        return text
    if len(members) == 1 and len(path) > 1:
        return take(text, path[:-1], where)
    if len(members) == 1:
        end = _skip(text, found.end)
        return text[: start + 1] + text[end:]
    # Remove one comma with the member: the one behind the first, else the one before.
    at = members.index(found)
    if at == 0:
        return text[: found.start] + text[members[1].start :]
    return text[: members[at - 1].end] + text[found.end :]


def _put(text: str, start: int, path: list[str], value: Any, depth: int, where: str) -> str:
    members = _list_members(text, start, where)
    found = _find(members, path[0])
    if found is not None and len(path) > 1:
        if text[found.value] != "{":
            raise _make_error(where, f"{path[0]} is not an object")
        return _put(text, found.value, path[1:], value, depth + 1, where)
    for key in reversed(path[1:]):
        value = {key: value}
    indent = _find_indent(text)
    pad = "\n" + indent * depth
    shown = json.dumps(value, indent=indent, ensure_ascii=False).replace("\n", pad)
    # An equal value keeps its formatting.
    if found is not None:
        same = _DECODER.raw_decode(text, found.value)[0] == value
        return text if same else text[: found.value] + shown + text[found.end :]
    entry = f"{pad}{json.dumps(path[0])}: {shown}"
    if members:
        return text[: members[-1].end] + "," + entry + text[members[-1].end :]
    close = _skip(text, start + 1)
    return text[: start + 1] + entry + "\n" + indent * (depth - 1) + text[close:]


def _find_outer(text: str, where: str) -> int:
    start = _skip(text, 0)
    if text[start : start + 1] != "{":
        raise _make_error(where, "it is not a JSON object")
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _make_error(where, str(error)) from None
    return start


def _list_members(text: str, start: int, where: str) -> list[JsonMember]:
    """Return the members of the object at `start`; the text must be valid JSON."""
    found: list[JsonMember] = []
    at = _skip(text, start + 1)
    while text[at] != "}":
        key, after = _DECODER.raw_decode(text, at)
        value = _skip(text, _skip(text, after) + 1)
        _, end = _DECODER.raw_decode(text, value)
        # Clients differ in which of two equal keys counts.
        if _find(found, key) is not None:
            raise _make_error(where, f"it has the key {key} twice")
        found.append(JsonMember(key, at, value, end))
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return found


def _find(members: Sequence[JsonMember], key: str) -> JsonMember | None:
    return next((each for each in members if each.key == key), None)


def _find_indent(text: str) -> str:
    found = re.search(r"\n([ \t]+)\S", text)
    return found.group(1) if found else "  "


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _make_error(where: str, why: str) -> BadInput:
    return BadInput(
        f"{where} cannot be changed safely: {why}",
        code="bad_file",
        hint="fix the file, or add an entry by hand whose command is: retinue mcp",
    )
