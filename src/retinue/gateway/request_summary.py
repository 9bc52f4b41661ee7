"""Summary of a request, made before it is sent: models, size, limits and features."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from retinue.gateway.vendors.base import Document, Endpoint, Vendor
from retinue.gateway.vendors.request_features import UnknownShape

# Outline of a large JSON request: its structure, with long texts cut short.
#
# The JSON parser holds the GIL until it is done and needs many times the memory of its input. So a
# large request is first reduced, in short steps in a thread. The rest that is parsed is small,
# however large the request was.

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


def parse_document(text: str) -> dict[str, Any]:
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


# All known names of output limits. A lenient server may read another vendor's.
ALL_LIMITS = (
    *("max_output_tokens", "max_completion_tokens", "max_tokens", "maxOutputTokens"),
    *("max_new_tokens", "max_tokens_to_sample", "n_predict", "num_predict", "budget_tokens"),
)
COPIES = ("n", "best_of", "candidateCount", "candidate_count")
NESTED = ("generationConfig", "generation_config", "thinking", "reasoning", "options")
CHARACTERS_PER_TOKEN = 4
LONGEST_ANSWER = 128_000  # assumed output tokens of a request without a limit
MOST_COPIES = 128
MOST_COUNTED = 1_000_000_000
LARGEST_CONTEXT = 1_000_000  # input tokens that a hosted tool can cause
WRAPPING = 64  # tokens that a vendor adds to a request


@dataclass(frozen=True, kw_only=True)
class RequestSummary:
    """Model, size and features of a request, known before it is sent."""

    model: str = ""
    models: tuple[str, ...] = ()  # all models that it names
    input_tokens: int = 0  # estimate
    most_input_tokens: int = 0  # upper bound: a token has at least one character
    most_output_tokens: int = LONGEST_ANSWER
    features: Mapping[str, str] = field(default_factory=dict)  # see vendors/request_features.py
    unreadable: str = ""  # why the request cannot be interpreted

    @property
    def readable(self) -> bool:
        return not self.unreadable


def describe_request(vendor: Vendor, path: str, body: bytes) -> RequestSummary:
    """Summarise a POST request; one that cannot be read gets the reason in `unreadable`.

    Raises:
        DocumentTooLarge: a large request exceeds a limit of the outline.
    """
    endpoint = vendor.find_endpoint("POST", path)
    assert endpoint is not None, path
    unreadable = ""
    document: Document = {}
    features: dict[str, str] = {}
    characters = 0
    try:
        if len(body) > LARGE:
            text, characters = build_outline(body)
        else:
            text = body.decode()
        document = parse_document(text)
        features = _find_features(endpoint, document)
    except UnknownShape as where:
        unreadable = f"{where} is not in the documented format"
    except UnicodeDecodeError:
        unreadable = "it is not UTF-8"
    except RecursionError:
        unreadable = "it is nested too deeply"
    except InvalidDocument as why:
        unreadable = str(why)
    if len(body) <= LARGE:
        characters = _count_characters(document)
    models = vendor.list_models(path, document)
    most_input = characters + WRAPPING
    return RequestSummary(
        model=models[0],
        models=tuple(models),
        input_tokens=estimate_tokens(characters),
        most_input_tokens=max(most_input, LARGEST_CONTEXT) if features else most_input,
        most_output_tokens=_compute_output_limit(endpoint.output_limits, document),
        features=features,
        unreadable=unreadable,
    )


def _find_features(endpoint: Endpoint, document: Document) -> dict[str, str]:
    """Return the features that a request uses, each with its first description.

    Raises:
        UnknownShape: the request cannot be interpreted.
    """
    used: dict[str, str] = {}
    for name, description in endpoint.find_features(document):
        used.setdefault(name, description)
    return used


def _compute_output_limit(documented: tuple[str, ...], document: Document) -> int:
    """Return the most output tokens that a request allows.

    A server may read any of the known limits, so the largest one counts. Without a documented
    limit of this endpoint, the limit is the model's.
    """
    places = [document, *(document.get(name) for name in NESTED)]
    known = [place for place in places if isinstance(place, dict)]
    limits = [place[name] for place in known for name in ALL_LIMITS if _is_set(place.get(name))]
    copies = [place[name] for place in known for name in COPIES if _is_set(place.get(name))]
    most = max((_count(each, LONGEST_ANSWER) for each in limits), default=LONGEST_ANSWER)
    if not any(_is_set(place.get(name)) for place in known for name in documented):
        most = max(most, LONGEST_ANSWER)
    return most * max((_count(each, MOST_COPIES) for each in copies), default=1)


def _is_set(value: object) -> bool:
    return value is not None


def _count(value: object, unclear: int) -> int:
    """Return a number as lenient servers read it; `unclear` if it is not a number above 0."""
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 1:
        return unclear
    return int(min(value, MOST_COUNTED))


def estimate_tokens(characters: int) -> int:
    return -(-characters // CHARACTERS_PER_TOKEN)


def _count_characters(document: object) -> int:
    """Return the number of characters in all strings; encoded media counts little."""
    # A loop instead of recursion: the depth of the document is the child's choice.
    unseen = [document]
    found = 0
    while unseen:
        value = unseen.pop()
        if isinstance(value, str):
            media = len(value) >= BASE64_AT_LEAST and " " not in value[:BASE64_AT_LEAST]
            found += BASE64_AT_LEAST if media else len(value)
        elif isinstance(value, dict):
            unseen += value.values()
        elif isinstance(value, list):
            unseen += value
    return found
