"""Changes to JSON files as people keep them: with comments, trailing commas, their own layout.

A change adds, replaces or removes one item of an object or array; all other text stays as it is.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

Key = str | int  # the name of a member, or the index of an element
Path = tuple[Key, ...]

_GAP = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
# What follows an item on its line: a comment there is about this item.
_REST_OF_LINE = re.compile(r"[ \t]*(?://[^\n]*|/\*[^\n]*?\*/)?")
_DECODER = json.JSONDecoder()
_CLOSING = {"{": "}", "[": "]"}


@dataclass(frozen=True, kw_only=True)
class JsonNode:
    """A value, and where its text is."""

    start: int
    end: int
    value: Any
    items: tuple[Item, ...] = ()

    def find(self, key: Key) -> Item | None:
        return next((each for each in self.items if each.key == key), None)


@dataclass(frozen=True, kw_only=True)
class Item:
    """Member of an object, or element of an array."""

    key: Key
    start: int  # of its key or, in an array, of its value
    node: JsonNode
    end: int  # after the comma that follows the value, if there is one

    @property
    def has_comma(self) -> bool:
        return self.end > self.node.end


def parse_document(text: str) -> JsonNode:
    """Return the one value of the text; an empty text is an empty object.

    Raises:
        ValueError: it is not JSON, even with comments, or an object has a key twice.
        RecursionError: it is nested too deeply.
    """
    start = _skip_gap(text, 0)
    if start == len(text):
        return JsonNode(start=start, end=start, value={})
    node = _parse_value(text, start)
    rest = _skip_gap(text, node.end)
    if rest < len(text):
        raise json.JSONDecodeError("Extra data", text, rest)
    return node


def _parse_value(text: str, start: int) -> JsonNode:
    if text[start : start + 1] in _CLOSING:
        return _parse_container(text, start)
    value, end = _DECODER.raw_decode(text, start)
    return JsonNode(start=start, end=end, value=value)


def _parse_container(text: str, start: int) -> JsonNode:
    closing = _CLOSING[text[start]]
    items: list[Item] = []
    place = _skip_gap(text, start + 1)
    while not text.startswith(closing, place):
        if items and not items[-1].has_comma:
            raise json.JSONDecodeError("Expecting ',' delimiter", text, place)
        first = place
        key: Key = len(items)
        if closing == "}":
            key, place = _parse_key(text, place)
        node = _parse_value(text, place)
        after = _skip_gap(text, node.end)
        end = after + 1 if text.startswith(",", after) else node.end
        items.append(Item(key=key, start=first, node=node, end=end))
        place = _skip_gap(text, end)
    value: Any = [each.node.value for each in items]
    if closing == "}":
        value = {each.key: each.node.value for each in items}
        # Clients differ in which of two counts.
        if len(value) < len(items):
            raise ValueError("it has a key twice")
    return JsonNode(start=start, end=place + 1, value=value, items=tuple(items))


def _parse_key(text: str, start: int) -> tuple[str, int]:
    """Return a member's key, and where its value starts."""
    key, end = _DECODER.raw_decode(text, start)
    colon = _skip_gap(text, end)
    if not isinstance(key, str) or not text.startswith(":", colon):
        raise json.JSONDecodeError("Expecting a key in double quotes and ':'", text, start)
    return key, _skip_gap(text, colon + 1)


def _skip_gap(text: str, start: int) -> int:
    """Return where the space and the comments end that start here."""
    found = _GAP.match(text, start)
    return found.end() if found else start


def set_value(text: str, path: Path, value: Any) -> str:
    """Return the text with the value at the path, and with the objects that are missing there."""
    node = parse_document(text)
    if node.start == node.end:
        text += "\n{}\n" if text.strip() else "{}\n"
        node = parse_document(text)
    for depth, key in enumerate(path):
        item = node.find(key)
        if item is None:
            for missing in reversed(path[depth + 1 :]):
                value = {missing: value}
            return _insert(text, node, f"{json.dumps(key)}: ", value)
        node = item.node
    return text[: node.start] + _format(text, value, _get_indent(text, node)) + text[node.end :]


def append_element(text: str, path: Path, value: Any) -> str:
    """Return the text with one more element in the array at the path, which must exist."""
    node = parse_document(text)
    for key in path:
        item = node.find(key)
        assert item is not None
        node = item.node
    return _insert(text, node, "", value)


def _insert(text: str, node: JsonNode, head: str, value: Any) -> str:
    """Return the text with one more item, which comes last."""
    outer = _get_indent(text, node)
    if not node.items:
        inner = outer + _find_unit(text)
        before = text[: node.end - 1].rstrip()
        item = head + _format(text, value, inner)
        return f"{before}\n{inner}{item}\n{outer}{text[node.end - 1 :]}"
    last = node.items[-1]
    comma = "," if last.has_comma else ""  # where the last item has one, ours gets one
    if "\n" not in text[node.start : last.start]:
        item = head + json.dumps(value, ensure_ascii=False)
        between = text[last.node.end : last.end] or ","
        return f"{text[: last.node.end]}{between} {item}{comma}{text[last.end :]}"
    found = _REST_OF_LINE.match(text, last.end)
    end = found.end() if found else last.end
    between = ("" if comma else ",") + text[last.node.end : end]
    inner = _get_line_indent(text, last.start)
    item = head + _format(text, value, inner)
    return f"{text[: last.node.end]}{between}\n{inner}{item}{comma}{text[end:]}"


def remove_value(text: str, path: Path) -> str:
    """Return the text without the item at the path, and without what held nothing else."""
    node = parse_document(text)
    outer, item = node, None
    for key in path:
        outer, item = node, node.find(key)
        if item is None:
            return text
        node = item.node
    assert item is not None
    start, end = _widen(text, item)
    if len(outer.items) == 1:
        inside = text[outer.start + 1 : start] + text[end : outer.end - 1]
        if not inside.strip():
            if len(path) > 1:
                return remove_value(text, path[:-1])
            return text[: outer.start + 1] + text[outer.end - 1 :]
    elif item is outer.items[-1] and not item.has_comma:
        # The item before is now the last, and gets no comma.
        comma = outer.items[-2].end - 1
        return text[:comma] + text[comma + 1 : start] + text[end:]
    return text[:start] + text[end:]


def _widen(text: str, item: Item) -> tuple[int, int]:
    """Return the range of an item with the space before it or, if it is first, after it."""
    start = item.start
    while text[start - 1] in " \t":
        start -= 1
    if text[start - 1] == "\n":
        return start - 1, item.end
    if text[start - 1] == ",":
        return start, item.end
    end = item.end
    while text[end : end + 1] in (" ", "\t"):
        end += 1
    return item.start, end


def _format(text: str, value: Any, indent: str) -> str:
    """Return a value in the layout of the text, for a place with this indentation."""
    lines = json.dumps(value, indent=_find_unit(text), ensure_ascii=False)
    return lines.replace("\n", f"\n{indent}")


def _find_unit(text: str) -> str:
    """Return the space by which the text indents; two blanks if it does not."""
    found = re.search(r"\n([ \t]+)[^\s/*]", text)
    return found.group(1) if found else "  "


def _get_indent(text: str, node: JsonNode) -> str:
    return _get_line_indent(text, node.start)


def _get_line_indent(text: str, place: int) -> str:
    """Return the space at the start of the line."""
    line = text[text.rfind("\n", 0, place) + 1 : place]
    return line[: len(line) - len(line.lstrip(" \t"))]
