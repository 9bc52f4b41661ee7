"""HTTP requests over a real connection: an answer is complete or an error."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from retinue.team.models.hosted_model import HttpAnswer, Unanswered, send_request

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
SIZED = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"


async def asked(pieces: Sequence[bytes], *, stays: bool = False) -> tuple[HttpAnswer, bytes]:
    """Return the outcome of a request that is answered with these pieces, and the request."""
    requests: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n") + await reader.readexactly(2))
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        if stays:
            await reader.read()  # until the other end is closed
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with asyncio.timeout(10):
            answered = await send_request(f"http://127.0.0.1:{port}/a/b?c=d", {"x-key": "k"}, b"{}")
        return answered, requests[0]


def chunks(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (*parts, b""))


def test_the_request_is_complete_and_asks_for_an_uncompressed_answer() -> None:
    answer, request = asyncio.run(asked([SIZED + b"hello"]))
    lines = request.lower().split(b"\r\n")
    assert lines[0] == b"post /a/b?c=d http/1.1" and lines[-1] == b"{}"
    assert {b"x-key: k", b"content-length: 2", b"accept-encoding: identity"} <= set(lines)
    assert (answer.head.status, answer.body) == (200, b"hello")


def test_an_answer_is_returned_at_its_last_byte() -> None:
    for piece in (SIZED + b"hello", CHUNKED + chunks(b"hello")):
        answer, _ = asyncio.run(asked([piece], stays=True))
        assert answer.body == b"hello"


def test_an_answer_without_a_length_ends_with_the_connection() -> None:
    answer, _ = asyncio.run(asked([b"HTTP/1.1 500 No\r\nX-A: b\r\n\r\n", b"bro", b"ken"]))
    assert (answer.head.status, answer.body, answer.head.get("x-a")) == (500, b"broken", "b")


@settings(max_examples=30, deadline=None)
@given(some.lists(some.sampled_from([b"a", b"0\r\n", b"\r\n", b"\r\n0", b"long" * 99]), max_size=6))
def test_chunks_are_joined_wherever_they_are_split(parts: list[bytes]) -> None:
    parts = [part for part in parts if part]
    whole = CHUNKED + chunks(*parts)
    pieces = [whole[at : at + 7] for at in range(0, len(whole), 7)]
    answer, _ = asyncio.run(asked(pieces, stays=True))
    assert answer.body == b"".join(parts)


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [b"HTTP/1.1 200 OK\r\n"],
        [SIZED + b"hell"],
        [CHUNKED + chunks(b"hello")[:-5]],
        [CHUNKED + b"5\r\nhel"],
        [CHUNKED + b"x\r\nhello\r\n0\r\n\r\n"],
        [b"nonsense\r\n\r\n"],
    ],
    ids=["silence", "half a head", "half a body", "no last chunk", "half", "no size", "no HTTP"],
)
def test_a_cut_or_invalid_answer_raises(pieces: list[bytes]) -> None:
    with pytest.raises(Unanswered):
        asyncio.run(asked(pieces))
