"""A large request is described as a small one is, and never for long."""

from __future__ import annotations

import json
from typing import Any

import pytest

from retinue.gateway import wires
from retinue.gateway.outline import LARGE, MOST_STRINGS, TooMany, outline

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


def written(**members: Any) -> bytes:
    """A request that is large only by what is added to it."""
    return json.dumps(members | {"more": "so on " * LARGE}, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("wire", "members"),
    [
        ("openai", CHAT | {"messages": WORDS}),
        ("openai", {"messages": WORDS} | CHAT),
        ("openai", {"messages": [WORDS, {"max_tokens": 3}], "model": "ü/1"}),
        ("openai", {"input": [], "stream": False, "max_output_tokens": "many", "model": None}),
        ("gemini", {"contents": WORDS, "generationConfig": {"a": {}, "maxOutputTokens": 5}}),
        ("gemini", {"generationConfig": []}),
    ],
)
def test_a_large_request_is_described_as_if_it_were_small(
    wire: str, members: dict[str, Any]
) -> None:
    small = wires.describe(wire, PATHS[wire], json.dumps(members).encode())
    large = wires.describe(wire, PATHS[wire], written(**members))
    for name in ("model", "most_output_tokens"):
        assert getattr(large, name) == getattr(small, name)
    beside = large.most_input_tokens - 6 * LARGE - small.most_input_tokens
    assert 0 <= beside < 20, "an escape counts as it is written"


@pytest.mark.parametrize(
    "text",
    [
        b'{"model":"other","mod\\u0065l":"m"',
        b'{"model":{"model":"other"},"model":"m"',
        b'{"a":"\\"model\\":\\"other\\"","model" \n:\t"m"',
        b'{"a":[{"b":["model",{}]}],"model":"m"' + b" " * LARGE,
    ],
)
def test_the_last_member_of_that_name_counts_however_it_is_spelled(text: bytes) -> None:
    body = text + b',"more":"' + b"x" * LARGE + b'"}'
    assert wires.describe("openai", PATHS["openai"], body).model == "m"
    assert json.loads(body)["model"] == "m"


def test_pictures_count_for_little_in_large_requests_too() -> None:
    body = json.dumps({"messages": [{"image": "A" * 4_000_000}]}).encode()
    assert wires.describe("openai", PATHS["openai"], body).input_tokens < 2000


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'{"', b'{"a', b'"\\', b'{"model"', b'{"model":', b'{"model":[', b"\xff", b"]}:"],
)
def test_what_is_no_request_is_left_to_the_provider(body: bytes) -> None:
    assert outline(body, wires.DESCRIBING)[0] == {}


def test_elements_cost_nothing_and_strings_have_an_end() -> None:
    lists = b'{"messages":[' + b"[]," * 2_000_000 + b'[]],"model":"m"}'
    assert outline(lists, wires.DESCRIBING) == ({"model": "m"}, 1)
    with pytest.raises(TooMany):
        outline(b"[" + b'"",' * MOST_STRINGS + b'""]', wires.DESCRIBING)
