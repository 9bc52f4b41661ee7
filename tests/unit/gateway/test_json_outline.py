"""Outlines of large requests: same summary as small ones, with bounded work."""

from __future__ import annotations

import json
from typing import Any

import pytest

from retinue.gateway.request_summary import (
    LARGE,
    MOST_BRACKETS,
    MOST_STRINGS,
    STEP,
    DocumentTooLarge,
    RequestSummary,
    build_outline,
    describe_request,
    parse_document,
)
from retinue.gateway.vendors import VENDORS

PATHS = {
    "openai": "/v1/chat/completions",
    "gemini": "/v1beta/models/gemini-2.5-flash:generateContent",
}
CHAT = {"model": "m", "stream": True, "max_tokens": 7}
WORDS = [
    {"role": "user", "content": 'He said: "{[\\" and went, \n\t'},
    {"model": "no"},
    [1.5, None],
]


# Plain text parameters, which make a request large without changing its meaning.
FILLERS = {"openai": "user", "gemini": "title"}


def describe(wire: str, path: str, body: bytes) -> RequestSummary:
    return describe_request(VENDORS[wire], path, body)


def written(wire: str, **members: Any) -> bytes:
    """Return the request with a long filler."""
    added = {FILLERS[wire]: "so on " * LARGE}
    return json.dumps(members | added, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("wire", "members"),
    [
        ("openai", CHAT | {"messages": WORDS}),
        ("openai", {"messages": WORDS} | CHAT),
        ("openai", {"messages": [WORDS, {"max_tokens": 3}], "model": "ü/1"}),
        ("openai", {"input": [], "stream": False, "max_output_tokens": None, "model": None}),
        ("gemini", {"contents": WORDS, "generationConfig": {"a": {}, "maxOutputTokens": 5}}),
        ("gemini", {"generationConfig": []}),
    ],
)
def test_a_large_request_has_the_same_summary_as_a_small_one(
    wire: str, members: dict[str, Any]
) -> None:
    small = describe(wire, PATHS[wire], json.dumps(members).encode())
    large = describe(wire, PATHS[wire], written(wire, **members))
    for name in ("model", "most_output_tokens", "features", "unreadable"):
        assert getattr(large, name) == getattr(small, name)
    beside = large.most_input_tokens - 6 * LARGE - small.most_input_tokens
    # The outline counts an escape with the characters it is written with.
    assert 0 <= beside < 20


@pytest.mark.parametrize(
    "text",
    [
        b'{"model":"other","mod\\u0065l":"m"',
        b'{"a":{"b":1,"b":2},"model":"m"',
        b'{"a":[{"b":["model",{}],"b":[]}],"model":"m"' + b" " * LARGE,
    ],
)
def test_a_request_with_a_duplicate_name_is_unreadable(text: bytes) -> None:
    # A small body is parsed directly, a large one through its outline.
    for more in (b"x", b"x" * LARGE):
        body = text + b',"user":"' + more + b'"}'
        assert describe("openai", PATHS["openai"], body).unreadable


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":"\\"model\\":\\"other\\"","model" \n:\t"m"',
        b'{"a":[{"b":["model",{}]}],"model":"m"' + b" " * LARGE,
        b'{"a":"' + b"\\u00e4\\\\" * 40 + b'","model":"m"',
        b'{"a":"' + "ä".encode() * 70 + b'","model":"m"',
        b'{"' + b"k" * 300 + b'1":"","' + b"k" * 300 + b'2":"","model":"m"',
    ],
)
def test_the_outline_keeps_the_model_whatever_surrounds_it(text: bytes) -> None:
    body = text + b',"user":"' + b"x" * LARGE + b'"}'
    asked = describe("openai", PATHS["openai"], body)
    assert (asked.model, asked.unreadable) == ("m", "")
    assert json.loads(body)["model"] == "m"


def test_images_in_large_requests_count_few_tokens() -> None:
    body = json.dumps({"messages": [{"image": "A" * 4_000_000}]}).encode()
    assert describe("openai", PATHS["openai"], body).input_tokens < 2000


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'{"', b'{"a', b'"\\', b'{"model"', b'{"model":', b'{"model":[', b"\xff", b"]}:"],
)
def test_a_malformed_body_is_unreadable(body: bytes) -> None:
    for each in (body, body + b" " * (LARGE + 1)):
        assert describe("openai", PATHS["openai"], each).unreadable


def test_a_body_in_another_encoding_is_unreadable() -> None:
    document = json.dumps({"model": "m", "user": "x" * LARGE})
    for encoding in ("utf-16", "utf-32", "utf-8-sig"):
        for text in (document, '{"model": "m"}'):
            asked = describe("openai", PATHS["openai"], text.encode(encoding))
            assert asked.unreadable, encoding


def test_the_outline_is_small_and_bounded() -> None:
    text, letters = build_outline(
        b'{"model":"m","a":"' + b"x" * 10_000_000 + b'"' + b" " * STEP + b"}"
    )
    assert len(text) < 1000 and parse_document(text)["model"] == "m"
    # A long text without spaces counts as an image.
    assert letters == 1 + 4096
    for many in (b'"",' * MOST_STRINGS, b"[]," * MOST_BRACKETS, b"1," * 3_000_000):
        with pytest.raises(DocumentTooLarge):
            build_outline(b"[" + many + b'""]')
