"""Usage is read out of every vendor's answers, to the token, in whatever pieces they come."""

from __future__ import annotations

import gzip
import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as some

from retinue.gateway import wires
from retinue.gateway.meters import LARGEST_PIECE, Meter
from retinue.wire.vendors.readings import Reading
from support import upstream

SSE = "text/event-stream; charset=utf-8"
JSON = "application/json"
WHOLE = Reading(
    input_tokens=upstream.INPUT,
    output_tokens=upstream.OUTPUT,
    cached_tokens=upstream.CACHED,
    reasoning_tokens=upstream.REASONING,
    whole=True,
)


def streamed(kind: str) -> bytes:
    asked = {"model": "m", "stream": True}
    pieces = {
        wires.CHAT: lambda: upstream.chat(asked, stated=True),
        wires.RESPONSES: lambda: upstream.responses(asked),
        wires.MESSAGES: lambda: upstream.messages(asked),
        wires.GENERATE: lambda: upstream.gemini(":streamGenerateContent", True),
    }[kind]()[0]
    assert pieces is not None
    return b"".join(pieces)


def answered(kind: str) -> bytes:
    asked = {"model": "m"}
    whole = {
        wires.CHAT: lambda: upstream.chat(asked, stated=True),
        wires.RESPONSES: lambda: upstream.responses(asked),
        wires.MESSAGES: lambda: upstream.messages(asked),
        wires.GENERATE: lambda: upstream.gemini(":generateContent", False),
    }[kind]()[1]
    return json.dumps(whole).encode()


def read(kind: str, data: bytes, content_type: str, cuts: tuple[int, ...] = ()) -> Reading:
    meter, start = Meter(kind, content_type=content_type), 0
    for cut in (*sorted(cuts), len(data)):
        meter.feed(data[start:cut])
        start = cut
    return meter.finish()


def counts(reading: Reading) -> tuple[object, ...]:
    return (
        reading.input_tokens,
        reading.output_tokens,
        reading.cached_tokens,
        reading.reasoning_tokens,
        reading.whole,
    )


EXPECTED = {kind: counts(WHOLE) for kind in (wires.CHAT, wires.RESPONSES, wires.GENERATE)}
EXPECTED[wires.MESSAGES] = (upstream.INPUT, upstream.OUTPUT, upstream.CACHED, 0, True)


@pytest.mark.parametrize("kind", EXPECTED)
def test_a_stream_is_read_to_the_token(kind: str) -> None:
    assert counts(read(kind, streamed(kind), SSE)) == EXPECTED[kind]


@pytest.mark.parametrize("kind", EXPECTED)
def test_an_answer_in_one_piece_is_read_to_the_token(kind: str) -> None:
    assert counts(read(kind, answered(kind), JSON)) == EXPECTED[kind]


@given(kind=some.sampled_from(sorted(EXPECTED)), cuts=some.lists(some.integers(0, 2000)))
def test_where_the_bytes_are_cut_into_pieces_changes_nothing(kind: str, cuts: list[int]) -> None:
    data = streamed(kind)
    within = tuple(cut for cut in cuts if cut < len(data))
    assert counts(read(kind, data, SSE, within)) == EXPECTED[kind]


@given(kind=some.sampled_from(sorted(EXPECTED)), part=some.floats(0, 0.999))
def test_a_cut_stream_is_read_as_far_as_it_came(kind: str, part: float) -> None:
    data = streamed(kind)
    reading = read(kind, data[: int(len(data) * part)], SSE)
    said = reading.output_tokens or 0
    assert 0 <= reading.characters <= len("".join(upstream.WORDS))
    assert said <= upstream.OUTPUT


@given(kind=some.sampled_from(sorted(EXPECTED)), junk=some.binary(max_size=300))
def test_junk_is_never_an_error(kind: str, junk: bytes) -> None:
    assert isinstance(read(kind, b"data: " + junk + b"\n" + junk, SSE), Reading)
    assert isinstance(read(kind, junk, JSON), Reading)


@pytest.mark.parametrize(
    "document",
    [
        b'data: {"usage": {"prompt_tokens": -1, "completion_tokens": "9"}}\n',
        b'data: {"usage": [1], "choices": [null]}\n',
        b'data: {"choices": [{"delta": 3}]}\n',
    ],
)
def test_what_no_vendor_documents_counts_for_nothing(document: bytes) -> None:
    reading = read(wires.CHAT, document, SSE)
    assert not reading.input_tokens and not reading.output_tokens


def test_what_anthropic_read_is_known_before_the_stream_is_over() -> None:
    data = streamed(wires.MESSAGES)
    reading = read(wires.MESSAGES, data[: data.index(b"message_delta")], SSE)
    assert reading.input_tokens == upstream.INPUT
    assert reading.characters == len("".join(upstream.WORDS))
    assert not reading.whole


def test_a_gemini_stream_without_events_is_a_list_and_read_as_one() -> None:
    pieces, _ = upstream.gemini(":streamGenerateContent", False)
    assert pieces is not None
    data = b"".join(pieces)
    assert counts(read(wires.GENERATE, data, JSON)) == EXPECTED[wires.GENERATE]
    cut = read(wires.GENERATE, data[:-30], JSON)
    assert cut.input_tokens == upstream.INPUT and not cut.whole


def test_compressed_answers_are_read_as_they_pass() -> None:
    data = gzip.compress(streamed(wires.CHAT))
    meter = Meter(wires.CHAT, content_type=SSE, content_encoding="gzip")
    for at in range(0, len(data), 7):
        meter.feed(data[at : at + 7])
    assert counts(meter.finish()) == EXPECTED[wires.CHAT]


def test_lines_may_end_as_they_like() -> None:
    data = streamed(wires.RESPONSES).replace(b"\n", b"\r\n")
    assert counts(read(wires.RESPONSES, data, SSE)) == EXPECTED[wires.RESPONSES]


def test_the_timings_of_llama_cpp_count_a_stream_that_tells_no_usage() -> None:
    timings = {"cache_n": 24, "prompt_n": 16, "predicted_n": 79}
    last = {"model": "m", "choices": [{"delta": {}, "finish_reason": "stop"}], "timings": timings}
    meter = Meter(wires.CHAT, content_type=SSE)
    meter.feed(b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n')
    meter.feed(b"data: " + json.dumps(last).encode() + b"\n\ndata: [DONE]\n\n")
    reading = meter.finish()
    assert reading.whole
    assert (reading.input_tokens, reading.cached_tokens, reading.output_tokens) == (40, 24, 79)


@pytest.mark.parametrize(
    ("kind", "pieces", "letters"),
    [
        (wires.CHAT, [{"choices": [{"delta": {"content": 'a "b"\n\u00e9'}}]}], 7),
        (wires.CHAT, [{"choices": [{"delta": {"reasoning_content": "abc"}}], "usage": None}], 3),
        (
            wires.CHAT,
            [{"choices": [{"delta": {"tool_calls": [{"function": {"arguments": '{"x":1}'}}]}}]}],
            7,
        ),
        (wires.CHAT, [{"choices": [{"text": "legacy"}]}], 6),
        (wires.RESPONSES, [{"type": "response.output_text.delta", "delta": "hello"}], 5),
        (
            wires.MESSAGES,
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
def test_the_letters_of_a_stream_that_says_nothing_of_its_cost_are_counted(
    kind: str, pieces: list[object], letters: int, ascii_only: bool
) -> None:
    meter = Meter(kind, content_type=SSE)
    for piece in pieces:
        meter.feed(f"data: {json.dumps(piece, ensure_ascii=ascii_only)}\n\n".encode())
    assert meter.so_far() == meter.so_far()
    assert meter.finish().characters == letters
    assert not meter.reading.whole


def test_what_would_unpack_to_more_than_is_read_is_not_unpacked() -> None:
    packed = gzip.compress(bytes(8 * LARGEST_PIECE), 9)
    meter = Meter(wires.CHAT, content_encoding="gzip")
    tracemalloc.start()
    try:
        meter.feed(packed)
        assert tracemalloc.get_traced_memory()[1] < 3 * LARGEST_PIECE
    finally:
        tracemalloc.stop()
    assert not meter.finish().whole


@pytest.mark.parametrize("overhears", [True, False])
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_the_tools_that_an_answer_calls_are_overheard_where_that_is_wanted(
    size: int, overhears: bool
) -> None:
    uses = [{"type": "tool_use", "id": "t", "name": name, "input": {}} for name in ("Read", "Bash")]
    start = {"type": "content_block_start", "index": 0}
    lines = [b"data: " + json.dumps(start | {"content_block": use}).encode() for use in uses]
    odd = [b'data: {"content": "tool_use", "content_block": {"type": "tool_use", "name": 7}}']
    whole = json.dumps({"type": "message", "content": [*uses, "tool_use"]}).encode()
    for kind, data in ((SSE, b"\n\n".join(lines + odd)), (JSON, whole)):
        meter = Meter(wires.MESSAGES, content_type=kind, overhears=overhears)
        for at in range(0, len(data), size):
            meter.feed(data[at : at + size])
        meter.finish()
        assert meter.called == ({"Read", "Bash"} if overhears else set())
