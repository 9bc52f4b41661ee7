"""What a large request says, without taking it apart: next to nothing of it becomes objects.

A parser holds up everybody else in this process until it is done, and makes many times as much of
a few bytes. Here every step is short, so that a thread which takes them is hardly noticed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Set
from typing import Any

LARGE = 64 * 1024  # what is smaller is parsed: that takes no longer
MOST_STRINGS = 250_000  # conversations of a thousand turns have ten thousand
LONGEST_NAME = 200
LONGEST_VALUE = 64 * 1024
STEP = 1024 * 1024
BASE64_AT_LEAST = 4096

_TEXT = re.compile(rb'(?:[^"\\]{1,256}+|\\.){0,4096}+', re.DOTALL)
_COLON = re.compile(rb"\s*+:\s*+")


class TooMany(Exception):
    """There are more strings than any request has."""


def outline(body: bytes, wanted: Set[str]) -> tuple[dict[str, Any], int]:
    """The wanted members of an object, as far as they are short; about how many letters of text
    there are in all of it. Of what is no JSON, anything.

    Raises:
        TooMany: to read on would take too long.
    """
    places: dict[str, int] = {}
    letters = depth = at = 0
    for first, last in _strings(body):
        depth += _deeper(body, at, first)
        at = last + 1
        colon = _COLON.match(body, at)
        if colon is None:
            media = last - first > BASE64_AT_LEAST
            media = media and body.find(b" ", first, first + BASE64_AT_LEAST) < 0
            letters += BASE64_AT_LEAST if media else last - first - 1
        elif depth == 1 and (name := _name(body[first : min(at, first + LONGEST_NAME)])) in wanted:
            places[name] = colon.end()
    found = {name: _value(body[at : at + LONGEST_VALUE]) for name, at in places.items()}
    return {name: value for name, value in found.items() if value is not None}, letters


def _strings(body: bytes) -> Iterator[tuple[int, int]]:
    """Where each begins and ends, with its quotes."""
    at = 0
    for _ in range(MOST_STRINGS):
        first = body.find(b'"', at)
        if first < 0:
            return
        last = _end(body, first + 1)
        yield first, last
        at = last + 1
    raise TooMany


def _end(body: bytes, at: int) -> int:
    """Where the string that goes on here has its closing quote, or breaks off."""
    quote = body.find(b'"', at)
    if body.find(b"\\", at, quote if quote >= 0 else len(body)) < 0:
        return quote if quote >= 0 else len(body)
    while (text := _TEXT.match(body, at)) and text.end() > at:
        at = text.end()
    return at


def _deeper(body: bytes, first: int, last: int) -> int:
    """How many brackets are opened there and not closed."""
    found = 0
    for at in range(first, last, STEP):
        end = min(at + STEP, last)
        found += body.count(b"{", at, end) + body.count(b"[", at, end)
        found -= body.count(b"}", at, end) + body.count(b"]", at, end)
    return found


def _name(quoted: bytes) -> str:
    try:
        return str(json.loads(quoted))
    except ValueError:
        return ""


def _value(text: bytes) -> Any:
    """What the text begins with, or None when that is not whole."""
    try:
        return json.JSONDecoder().raw_decode(text.decode("utf-8", "replace"))[0]
    except (ValueError, RecursionError):
        return None
