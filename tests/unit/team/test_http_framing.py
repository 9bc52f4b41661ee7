"""HTTP framing: answers are parsed from bytes in pieces of any size."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as some

from retinue.team.models.http_framing import (
    BodyReader,
    ChunkedBodyReader,
    MalformedResponse,
    ResponseHead,
    make_body_reader,
    read_head,
)

PIECES = [b"data: a\n\n", b"\r\n", b"0\r\n\r\n", b"x" * 300, b"5\r\n"]


def framed(pieces: list[bytes], end: bytes = b"0\r\n\r\n") -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in pieces) + end


def fed(body: BodyReader, data: bytes, cuts: list[int]) -> bytes:
    found, start = [], 0
    for cut in (*sorted(cut for cut in cuts if cut < len(data)), len(data)):
        if start < cut:
            found.append(body.feed(data[start:cut]))
        start = cut
    return b"".join(found)


@given(cuts=some.lists(some.integers(0, 400)), trailer=some.booleans(), named=some.booleans())
def test_chunks_are_the_same_body_wherever_they_are_cut(
    cuts: list[int], trailer: bool, named: bool
) -> None:
    data = framed(PIECES, b"0\r\nX-Sum: 1\r\n\r\n" if trailer else b"0\r\n\r\n")
    if named:
        data = data.replace(b"9\r\n", b"009 ;name=value\r\n")
    body = ChunkedBodyReader()
    assert fed(body, data, cuts) == b"".join(PIECES)
    assert body.whole and body.is_complete()


def test_parts_of_a_long_chunk_pass_as_they_arrive() -> None:
    body = ChunkedBodyReader()
    assert body.feed(b"a\r\n01234") == b"01234"
    assert body.feed(b"56") == b"56"
    assert not body.is_complete()
    assert body.feed(b"789\r") == b"789"
    assert body.feed(b"\n0\r\n\r\n") == b""
    assert body.whole


@pytest.mark.parametrize(
    "data",
    [
        b"zz\r\n",
        b"-1\r\n",
        b"0x5\r\nhello\r\n",
        b"1_0\r\n",
        b"+5\r\nhello\r\n",
        b"\r\n",
        b"5\r\nhello!\r\n",
        b"5\r\nhello\r\n0\r\n\r\nHTTP/1.1 200 OK",
        b"1" * 9000,
        b"f" * 13 + b"\r\n",
    ],
)
def test_an_invalid_chunk_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedResponse):
        ChunkedBodyReader().feed(data)


def test_a_body_ends_at_its_length_or_with_the_connection() -> None:
    counted, endless = BodyReader(3), BodyReader(None)
    assert counted.feed(b"ab") == b"ab" and not counted.is_complete()
    assert counted.feed(b"c") == b"c" and counted.whole
    with pytest.raises(MalformedResponse):
        counted.feed(b"d")
    assert endless.feed(b"abc") == b"abc" and not endless.whole and endless.is_complete()


def test_a_head_is_read_with_its_bytes_kept() -> None:
    head = read_head(b"HTTP/1.1 200 Fine\r\nContent-Length:  12 \r\nX-Name: caf\xe9\r\nEmpty:")
    assert (head.status, head.reason, head.length, head.keeps) == (200, "Fine", 12, True)
    assert head.get("x-name").encode("latin-1") == b"caf\xe9"
    assert head.get("empty") == head.get("missing") == ""


@pytest.mark.parametrize(
    ("text", "kind", "keeps"),
    [
        (
            b"HTTP/1.1 200\r\nTransfer-Encoding: Chunked\r\nContent-Length: 3",
            ChunkedBodyReader,
            True,
        ),
        (b"HTTP/1.1 200 OK\r\nConnection: close", BodyReader, False),
        (b"HTTP/1.0 200 OK", BodyReader, False),
        (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 0", BodyReader, True),
        (b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked", BodyReader, True),
    ],
)
def test_the_head_says_how_the_body_ends(text: bytes, kind: type[BodyReader], keeps: bool) -> None:
    head = read_head(text)
    assert type(make_body_reader(head)) is kind
    assert head.keeps is keeps


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"SSH-2.0-OpenSSH",
        b"HTTP/2 200 OK",
        b"HTTP/1.1 20 OK",
        b"HTTP/1.1 200 OK\r\nno colon",
        b"HTTP/1.1 200 OK\r\nName : value",
        b"HTTP/1.1 200 OK\r\nName: two\nlines: here",
        b"HTTP/1.1 200 OK\r\n folded: value",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4",
        b"HTTP/1.1 204 No Content\r\nContent-Length: 3\r\nContent-Length: 4",
        b"HTTP/1.1 200 OK\r\nContent-Length: +3",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked",
    ],
)
def test_an_invalid_head_is_refused(text: bytes) -> None:
    with pytest.raises(MalformedResponse):
        make_body_reader(read_head(text))


@given(junk=some.binary(max_size=200))
def test_any_bytes_are_a_head_or_refused(junk: bytes) -> None:
    with suppress(MalformedResponse):
        assert isinstance(read_head(junk), ResponseHead)
