"""Token usage in the answers of every vendor, in pieces of any size."""

from __future__ import annotations

import gzip
import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as some

from retinue.gateway.usage_meter import LARGEST_PIECE, UsageMeter
from retinue.gateway.vendors import VENDORS
from retinue.gateway.vendors.base import UsageReading
from support import upstream

CHAT, RESPONSES, MESSAGES, GENERATE = "chat", "responses", "messages", "generate"
PATHS = {
    CHAT: ("openai", "/v1/chat/completions"),
    RESPONSES: ("openai", "/v1/responses"),
    MESSAGES: ("anthropic", "/v1/messages"),
    GENERATE: ("gemini", "/v1beta/models/m:generateContent"),
}
SSE = "text/event-stream; charset=utf-8"
JSON = "application/json"
WHOLE = UsageReading(
    input_tokens=upstream.INPUT,
    output_tokens=upstream.OUTPUT,
    cached_tokens=upstream.CACHED,
    reasoning_tokens=upstream.REASONING,
    whole=True,
)


def streamed(kind: str) -> bytes:
    asked = {"model": "m", "stream": True}
    pieces = {
        CHAT: lambda: upstream.chat(asked, stated=True),
        RESPONSES: lambda: upstream.responses(asked),
        MESSAGES: lambda: upstream.messages(asked),
        GENERATE: lambda: upstream.gemini(":streamGenerateContent", True),
    }[kind]()[0]
    assert pieces is not None
    return b"".join(pieces)


def answered(kind: str) -> bytes:
    asked = {"model": "m"}
    whole = {
        CHAT: lambda: upstream.chat(asked, stated=True),
        RESPONSES: lambda: upstream.responses(asked),
        MESSAGES: lambda: upstream.messages(asked),
        GENERATE: lambda: upstream.gemini(":generateContent", False),
    }[kind]()[1]
    return json.dumps(whole).encode()


def make_meter(
    kind: str, content_type: str = "", content_encoding: str = "", collects_tools: bool = False
) -> UsageMeter:
    wire, path = PATHS[kind]
    endpoint = VENDORS[wire].find_endpoint("POST", path)
    assert endpoint is not None
    return UsageMeter(
        VENDORS[wire],
        endpoint,
        content_type=content_type,
        content_encoding=content_encoding,
        collects_tools=collects_tools,
    )


def read(kind: str, data: bytes, content_type: str, cuts: tuple[int, ...] = ()) -> UsageReading:
    meter, start = make_meter(kind, content_type=content_type), 0
    for cut in (*sorted(cuts), len(data)):
        meter.feed(data[start:cut])
        start = cut
    return meter.finish()


def counts(reading: UsageReading) -> tuple[object, ...]:
    return (
        reading.input_tokens,
        reading.output_tokens,
        reading.cached_tokens,
        reading.reasoning_tokens,
        reading.whole,
    )


EXPECTED = {kind: counts(WHOLE) for kind in (CHAT, RESPONSES, GENERATE)}
# Anthropic reports no reasoning tokens.
EXPECTED[MESSAGES] = (upstream.INPUT, upstream.OUTPUT, upstream.CACHED, 0, True)


@pytest.mark.parametrize("kind", EXPECTED)
def test_a_stream_is_read_to_the_token(kind: str) -> None:
    assert counts(read(kind, streamed(kind), SSE)) == EXPECTED[kind]


@pytest.mark.parametrize("kind", EXPECTED)
def test_a_single_document_is_read_to_the_token(kind: str) -> None:
    assert counts(read(kind, answered(kind), JSON)) == EXPECTED[kind]


@given(kind=some.sampled_from(sorted(EXPECTED)), cuts=some.lists(some.integers(0, 2000)))
def test_the_split_into_pieces_does_not_change_the_counts(kind: str, cuts: list[int]) -> None:
    data = streamed(kind)
    within = tuple(cut for cut in cuts if cut < len(data))
    assert counts(read(kind, data, SSE, within)) == EXPECTED[kind]


@given(kind=some.sampled_from(sorted(EXPECTED)), part=some.floats(0, 0.999))
def test_a_cut_stream_is_read_as_far_as_received(kind: str, part: float) -> None:
    data = streamed(kind)
    reading = read(kind, data[: int(len(data) * part)], SSE)
    said = reading.output_tokens or 0
    assert 0 <= reading.characters <= len("".join(upstream.WORDS))
    assert said <= upstream.OUTPUT


@given(kind=some.sampled_from(sorted(EXPECTED)), junk=some.binary(max_size=300))
def test_junk_raises_no_error(kind: str, junk: bytes) -> None:
    assert isinstance(read(kind, b"data: " + junk + b"\n" + junk, SSE), UsageReading)
    assert isinstance(read(kind, junk, JSON), UsageReading)


@pytest.mark.parametrize(
    "document",
    [
        b'data: {"usage": {"prompt_tokens": -1, "completion_tokens": "9"}}\n',
        b'data: {"usage": [1], "choices": [null]}\n',
        b'data: {"choices": [{"delta": 3}]}\n',
    ],
)
def test_undocumented_usage_counts_as_zero(document: bytes) -> None:
    reading = read(CHAT, document, SSE)
    assert not reading.input_tokens and not reading.output_tokens


def test_input_tokens_of_anthropic_are_known_before_the_stream_ends() -> None:
    data = streamed(MESSAGES)
    reading = read(MESSAGES, data[: data.index(b"message_delta")], SSE)
    assert reading.input_tokens == upstream.INPUT
    assert reading.characters == len("".join(upstream.WORDS))
    assert not reading.whole


def test_a_gemini_stream_in_the_form_of_a_list_is_read() -> None:
    pieces, _ = upstream.gemini(":streamGenerateContent", False)
    assert pieces is not None
    data = b"".join(pieces)
    assert counts(read(GENERATE, data, JSON)) == EXPECTED[GENERATE]
    # Complete elements of a cut list still count.
    cut = read(GENERATE, data[:-30], JSON)
    assert cut.input_tokens == upstream.INPUT and not cut.whole


def test_compressed_answers_are_read_in_pieces() -> None:
    data = gzip.compress(streamed(CHAT))
    meter = make_meter(CHAT, content_type=SSE, content_encoding="gzip")
    # Pieces that end in the middle of lines and of compressed blocks.
    for at in range(0, len(data), 7):
        meter.feed(data[at : at + 7])
    assert counts(meter.finish()) == EXPECTED[CHAT]


def test_lines_may_end_with_crlf() -> None:
    data = streamed(RESPONSES).replace(b"\n", b"\r\n")
    assert counts(read(RESPONSES, data, SSE)) == EXPECTED[RESPONSES]


def test_timings_of_llama_cpp_replace_missing_usage() -> None:
    timings = {"cache_n": 24, "prompt_n": 16, "predicted_n": 79}
    last = {"model": "m", "choices": [{"delta": {}, "finish_reason": "stop"}], "timings": timings}
    meter = make_meter(CHAT, content_type=SSE)
    meter.feed(b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n')
    meter.feed(b"data: " + json.dumps(last).encode() + b"\n\ndata: [DONE]\n\n")
    reading = meter.finish()
    assert reading.whole
    assert (reading.input_tokens, reading.cached_tokens, reading.output_tokens) == (40, 24, 79)


@pytest.mark.parametrize(
    ("kind", "pieces", "letters"),
    [
        (CHAT, [{"choices": [{"delta": {"content": 'a "b"\n\u00e9'}}]}], 7),
        (
            CHAT,
            [{"choices": [{"delta": {"reasoning_content": "abc"}}], "usage": None}],
            3,
        ),
        (
            CHAT,
            [{"choices": [{"delta": {"tool_calls": [{"function": {"arguments": '{"x":1}'}}]}}]}],
            7,
        ),
        (CHAT, [{"choices": [{"text": "legacy"}]}], 6),
        (RESPONSES, [{"type": "response.output_text.delta", "delta": "hello"}], 5),
        (
            MESSAGES,
            [
                {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "hi"}},
                {"type": "content_block_delta", "delta": {"partial_json": '{"a"'}},
                {"type": "content_block_delta", "delta": {"thinking": "hm"}},
            ],
            8,
        ),
    ],
)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_characters_are_counted_in_a_stream_without_usage(
    kind: str, pieces: list[object], letters: int, ascii_only: bool
) -> None:
    meter = make_meter(kind, content_type=SSE)
    for piece in pieces:
        meter.feed(f"data: {json.dumps(piece, ensure_ascii=ascii_only)}\n\n".encode())
    # Reading must not count the same characters twice.
    assert meter.read_so_far() == meter.read_so_far()
    assert meter.finish().characters == letters
    assert not meter.reading.whole


def test_a_decompression_bomb_is_not_expanded() -> None:
    packed = gzip.compress(bytes(8 * LARGEST_PIECE), 9)
    meter = make_meter(CHAT, content_encoding="gzip")
    tracemalloc.start()
    try:
        meter.feed(packed)
        # The peak shows whether the whole content was expanded.
        assert tracemalloc.get_traced_memory()[1] < 3 * LARGEST_PIECE
    finally:
        tracemalloc.stop()
    assert not meter.finish().whole


@pytest.mark.parametrize("collects_tools", [True, False])
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_called_tools_are_collected_on_request(size: int, collects_tools: bool) -> None:
    uses = [{"type": "tool_use", "id": "t", "name": name, "input": {}} for name in ("Read", "Bash")]
    start = {"type": "content_block_start", "index": 0}
    lines = [b"data: " + json.dumps(start | {"content_block": use}).encode() for use in uses]
    odd = [b'data: {"content": "tool_use", "content_block": {"type": "tool_use", "name": 7}}']
    whole = json.dumps({"type": "message", "content": [*uses, "tool_use"]}).encode()
    for kind, data in ((SSE, b"\n\n".join(lines + odd)), (JSON, whole)):
        meter = make_meter(MESSAGES, content_type=kind, collects_tools=collects_tools)
        for at in range(0, len(data), size):
            meter.feed(data[at : at + size])
        meter.finish()
        assert meter.called == ({"Read", "Bash"} if collects_tools else set())
