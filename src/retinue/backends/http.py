"""One request over HTTP/1.1, on a connection of its own, to the gateway on this child's loopback.

Nothing more of HTTP is needed than what the gateway says, so no library is: a child that runs one
copies megabytes of it. For the same reason it reads from the socket itself, without streams.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from retinue.version import VERSION
from retinue.wire.framing import LARGEST_HEAD, Head, Malformed, body_of, read_head

PIECE = 64 * 1024
LARGEST_ANSWER = 256 * 1024 * 1024
END_OF_HEAD = b"\r\n\r\n"


class Unanswered(Exception):
    """No answer came, or not the whole of it; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    head: Head
    body: bytes


async def post(url: str, headers: Mapping[str, str], body: bytes) -> Answer:
    """The whole answer of whoever is at `http://host:port/path`.

    Raises:
        Unanswered: there is none.
    """
    place, _, path = url.removeprefix("http://").partition("/")
    host, _, port = place.partition(":")
    head = {
        "host": place,
        "content-type": "application/json",
        "content-length": str(len(body)),
        "accept-encoding": "identity",
        "user-agent": f"retinue/{VERSION}",
        "connection": "close",
        **headers,
    }
    lines = [f"POST /{path} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
    request = "\r\n".join(lines).encode() + END_OF_HEAD + body
    loop = asyncio.get_running_loop()
    with socket.socket() as way:
        way.setblocking(False)
        try:
            await loop.sock_connect(way, (host, int(port)))
            await loop.sock_sendall(way, request)
            return await _answer(way)
        except OSError as fault:
            why = fault.strerror or fault
            raise Unanswered(f"no answer from {place}: {why}") from fault
        except Malformed as fault:
            raise Unanswered(f"no answer in HTTP from {place}: {fault}") from fault


async def _answer(way: socket.socket) -> Answer:
    """As soon as it is whole, whether or not the other end closes the connection then."""
    loop = asyncio.get_running_loop()
    data = b""
    while END_OF_HEAD not in data:
        more = await loop.sock_recv(way, PIECE)
        data += more
        if not more or len(data) > LARGEST_HEAD + PIECE:
            raise Malformed(f"its head does not end, after {len(data)} bytes")
    told, _, rest = data.partition(END_OF_HEAD)
    head = read_head(told)
    body = body_of(head)
    pieces = [body.feed(rest)]
    size = len(rest)
    while not body.whole:
        more = await loop.sock_recv(way, PIECE)
        size += len(more)
        if not more and body.closed():
            break
        if not more or size > LARGEST_ANSWER:
            raise Malformed(f"it was cut after {size} bytes")
        pieces.append(body.feed(more))
    return Answer(head=head, body=b"".join(pieces))
