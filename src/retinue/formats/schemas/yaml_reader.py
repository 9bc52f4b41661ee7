"""Strict YAML reader.

It builds plain data from the parser's events only. Tags, anchors, aliases and merge keys
are not supported, so a document cannot run code or expand in memory. Scalars follow the
core schema of YAML 1.2, without numbers that JSON lacks. Keys are always text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
)

from retinue.core.errors import BadInput
from retinue.formats.yaml_document import Place, YamlLimits

_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_BEYOND_UNICODE = re.compile(r"\\U(?!000|0010)[0-9a-fA-F]{8}")
_HALF_PAIR = re.compile("[\ud800-\udfff]")
# At most 300 digits: converting an integer takes time that grows with the square of its length.
_INT = re.compile(r"[-+]?[0-9]{1,300}|0o[0-7]{1,300}|0x[0-9a-fA-F]{1,300}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NO_NUMBER = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_NAMED: Mapping[str, object] = {
    "": None,
    "~": None,
    **dict.fromkeys(("null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


def read(
    text: str | bytes, where: str, limits: YamlLimits, first_line: int
) -> tuple[object, dict[Place, int]]:
    """Return plain data and the line of each key or item.

    Raises:
        BadInput: too large, not UTF-8, not YAML, or not plain data; names the line.
    """
    # The size comes first: the parser is slow and must not see a huge text.
    _require_size(text, where, limits.size_bytes)
    decoded = _decode(text, where, first_line) if isinstance(text, bytes) else text
    unprintable = _UNPRINTABLE.search(decoded)
    if unprintable is not None:
        line = first_line + decoded.count("\n", 0, unprintable.start())
        raise _make_error(
            where, line, f"character U+{ord(unprintable[0]):04X} is not allowed unescaped"
        )
    try:
        events = YAML(typ="safe", pure=True).parse(decoded)
        data, marks = _build(events, limits)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _make_error(
            where, first_line + (mark.line if mark else 0), _format_problem(error)
        ) from None
    except (YAMLError, ValueError, OverflowError) as error:
        # An escape beyond Unicode has no mark in the parser: search for its line.
        found = _BEYOND_UNICODE.search(decoded)
        line = first_line + decoded.count("\n", 0, found.start() if found else 0)
        raise _make_error(where, line, f"not readable: {error}") from None
    return data, {place: first_line + line for place, line in marks.items()}


def _require_size(text: str | bytes, where: str, limit: int) -> None:
    size = len(text)
    if isinstance(text, str) and size <= limit:
        size = len(text.encode("utf-8", "surrogatepass"))
    if size > limit:
        raise BadInput(
            f"{where}: line 1: larger than {limit // 1024} KiB",
            code="bad_yaml",
            hint="a configuration is a few kilobytes; keep data in files of its own",
        )


def _decode(raw: bytes, where: str, first_line: int) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first_line + raw.count(b"\n", 0, error.start)
        raise _make_error(where, line, f"byte 0x{raw[error.start]:02x} is not UTF-8") from None


def _make_error(where: str, line: int, problem: str) -> BadInput:
    one_line = " ".join(problem.split())
    return BadInput(f"{where}: line {line}: {one_line[:300]}", code="bad_yaml")


def _format_problem(error: MarkedYAMLError) -> str:
    problem = str(error.problem or error.context or "not YAML")
    if "'\\t'" in problem:
        problem += "; indent with spaces, not tabs"
    elif error.problem and error.context:
        problem = f"{problem} {error.context}"
    return problem


def _make_marked_error(problem: str, event: Any) -> MarkedYAMLError:
    return MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


@dataclass
class _OpenCollection:
    """A list or mapping whose end has not been read yet."""

    holder: dict[str, object] | list[object]
    place: Place
    key: str | None = None

    def take(self, event: Any, value: object) -> Place:
        """Add a value, or keep a key for the next value; return the place, the same for both."""
        if isinstance(self.holder, list):
            self.holder.append(value)
            return (*self.place, len(self.holder) - 1)
        if self.key is None:
            if not isinstance(event, ScalarEvent):
                raise _make_marked_error("a key must be a plain text", event)
            if event.value in self.holder:
                raise _make_marked_error(f"key {event.value[:80]!a} appears twice", event)
            self.key = event.value
            return (*self.place, event.value)
        place = (*self.place, self.key)
        self.holder[self.key] = value
        self.key = None
        return place


def _build(events: Iterable[Any], limits: YamlLimits) -> tuple[object, dict[Place, int]]:
    root: object = None
    marks: dict[Place, int] = {}
    documents = values = 0
    stack: list[_OpenCollection] = []
    for event in events:
        if isinstance(event, DocumentStartEvent):
            documents += 1
            _require_plain_start(event, documents)
        elif isinstance(event, CollectionEndEvent):
            stack.pop()
        elif isinstance(event, NodeEvent):
            values += 1
            _require_plain_node(event, limits, values, len(stack))
            value = _read_value(event)
            place = stack[-1].take(event, value) if stack else ()
            marks.setdefault(place, event.start_mark.line)
            root = root if stack else value
            if isinstance(value, dict | list):
                stack.append(_OpenCollection(value, place))
    return root, marks


def _require_plain_start(event: Any, documents: int) -> None:
    if documents > 1:
        raise _make_marked_error("a second document begins; only one is expected", event)
    if event.tags or event.version not in (None, (1, 2)):
        raise _make_marked_error("directives other than %YAML 1.2 are not accepted", event)


def _require_plain_node(event: Any, limits: YamlLimits, values: int, depth: int) -> None:
    if values > limits.values:
        raise _make_marked_error(f"more than {limits.values} values", event)
    if depth >= limits.depth and isinstance(event, CollectionStartEvent):
        raise _make_marked_error(f"nested deeper than {limits.depth} levels", event)
    if isinstance(event, AliasEvent):
        raise _make_marked_error(
            f"alias *{event.anchor} is not accepted; write the value out", event
        )
    if event.anchor is not None:
        raise _make_marked_error(
            f"anchor &{event.anchor} is not accepted; write the value out", event
        )
    if event.ctag is not None:
        raise _make_marked_error(f"tag {str(event.ctag)[:80]!a} is not accepted", event)
    if isinstance(event, ScalarEvent) and _HALF_PAIR.search(event.value):
        raise _make_marked_error("half of a surrogate pair is not text", event)


def _read_value(event: Any) -> object:
    if isinstance(event, CollectionStartEvent):
        return {} if isinstance(event, MappingStartEvent) else []
    # Quoted scalars and blocks are always text.
    if not event.implicit[0]:
        return event.value
    text: str = event.value
    if text in _NAMED:
        return _NAMED[text]
    if _INT.fullmatch(text):
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    if _FLOAT.fullmatch(text):
        number = float(text)
        if math.isfinite(number):
            return number
        raise _make_marked_error(f"{text[:80]} is too large for a number", event)
    if _NO_NUMBER.fullmatch(text):
        raise _make_marked_error(
            f"{text} is not accepted as a number; quote it if it is text", event
        )
    return text
