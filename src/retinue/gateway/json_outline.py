"""Outline of a large JSON request: its structure, with long texts cut short.

The JSON parser holds the GIL until it is done and needs many times the memory of its input. So a
large request is first reduced, in short steps in a thread. The rest that is parsed is small,
however large the request was.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

LARGE = 64 * 1024  # smaller requests are parsed directly, which is as fast
# Limits on the work for one request. A conversation of a thousand turns has ten thousand strings.
MOST_STRINGS = 250_000
MOST_BRACKETS = 250_000
LARGEST_OUTLINE = 4 * 1024 * 1024  # size of the outline
LONGEST_TEXT = 128  # kept length of a string; enough to tell an address from prose
SHORT_GAP = 64
STEP = 1024 * 1024
BASE64_AT_LEAST = 4096

# Possessive and bounded, so that one match takes a short time and never backtracks.
_TEXT = re.compile(rb'(?:[^"\\]{1,256}+|\\.){0,4096}+', re.DOTALL)
_COLON = re.compile(rb"\s*+:")
_WHOLE = re.compile(rb'"(?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*')  # ends before a cut escape
_SPACES = b" \t\r\n"


class DocumentTooLarge(Exception):
    """The document exceeds a limit on strings, brackets or size."""


class InvalidDocument(ValueError):
    """The text is not a JSON object, or has a duplicate name; the message says which."""


def parse(text: str) -> dict[str, Any]:
    """Parse a JSON object strictly.

    Raises:
        InvalidDocument: parsers could disagree about its content.
    """
    try:
        document = json.loads(text, object_pairs_hook=_refuse_duplicates)
    except InvalidDocument:
        raise
    except (ValueError, RecursionError):
        raise InvalidDocument("it is not valid JSON") from None
    if not isinstance(document, dict):
        raise InvalidDocument("it is not a JSON object")
    return document


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    # Of two equal names, one parser takes the first and another the last: a policy check could
    # see a different request than the vendor does.
    if len(found) != len(pairs):
        raise InvalidDocument("an object has the same name twice")
    return found


def build_outline(body: bytes) -> tuple[str, int]:
    """Return the request with long strings shortened, and about how many characters it had.

    The outline of valid JSON is valid JSON.

    Raises:
        DocumentTooLarge: the request exceeds a limit.
    """
    kept: list[bytes] = []
    characters = at = size = brackets = 0
    for first, last in _find_strings(body):
        gap = _strip_spaces(body, at, first)
        at = last + 1
        text = body[first : min(at, first + LONGEST_TEXT)]
        # A string before a colon is a name: shortening could make two names equal.
        if _COLON.match(body, at):
            text = body[first:at]
        else:
            # A long text without a space is encoded media, which costs few tokens for its size.
            media = last - first > BASE64_AT_LEAST
            media = media and body.find(b" ", first, first + BASE64_AT_LEAST) < 0
            characters += BASE64_AT_LEAST if media else last - first - 1
            if last - first >= LONGEST_TEXT and (whole := _WHOLE.match(text)):
                text = whole[0] + b'"'
        brackets += gap.count(b"{") + gap.count(b"[")
        size += len(gap) + len(text)
        if size > LARGEST_OUTLINE or brackets > MOST_BRACKETS:
            raise DocumentTooLarge
        kept += (gap, text)
    rest = _strip_spaces(body, at, len(body))
    brackets += rest.count(b"{") + rest.count(b"[")
    if size + len(rest) > LARGEST_OUTLINE or brackets > MOST_BRACKETS:
        raise DocumentTooLarge
    kept.append(rest)
    return b"".join(kept).decode("utf-8", "replace"), characters


def _strip_spaces(body: bytes, first: int, last: int) -> bytes:
    """Return the bytes between two strings without whitespace."""
    if last - first <= SHORT_GAP:
        return body[first:last]
    pieces = []
    size = 0
    # In steps, so that other threads can run in between.
    for at in range(first, last, STEP):
        piece = body[at : min(at + STEP, last)].translate(None, _SPACES)
        size += len(piece)
        if size > LARGEST_OUTLINE:
            raise DocumentTooLarge
        pieces.append(piece)
    return b"".join(pieces)


def _find_strings(body: bytes) -> Iterator[tuple[int, int]]:
    """Yield the positions of the opening and closing quote of each string."""
    at = 0
    for _ in range(MOST_STRINGS):
        first = body.find(b'"', at)
        if first < 0:
            return
        last = _find_string_end(body, first + 1)
        yield first, last
        at = last + 1
    raise DocumentTooLarge


def _find_string_end(body: bytes, at: int) -> int:
    """Return the position of the closing quote, or of the end of a string that breaks off."""
    # Most strings have no escape: the next quote ends them.
    quote = body.find(b'"', at)
    if body.find(b"\\", at, quote if quote >= 0 else len(body)) < 0:
        return quote if quote >= 0 else len(body)
    while (text := _TEXT.match(body, at)) and text.end() > at:
        at = text.end()
    return at
