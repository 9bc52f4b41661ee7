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

PIECE = 64 * 1024
LARGEST_ANSWER = 256 * 1024 * 1024
END_OF_HEAD = b"\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


class Unanswered(Exception):
    """No answer came, or not the whole of it; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    status: int
    headers: Mapping[str, str]  # by lower case names
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
        except (ValueError, IndexError) as fault:
            raise Unanswered(f"no answer in HTTP from {place}: {fault}") from fault


async def _answer(way: socket.socket) -> Answer:
    """As soon as it is whole, whether or not the other end closes the connection then."""
    data, more = bytearray(), True
    while (end := data.find(END_OF_HEAD)) < 0:
        if not await _receive(way, data):
            raise ValueError(f"it was cut after {len(data)} bytes")
    first, *lines = data[:end].decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    status = int(first.split(" ", 2)[1])
    del data[: end + len(END_OF_HEAD)]
    while (body := _body(headers, data, over=not more)) is None:
        if not more:
            raise ValueError(f"it was cut after {len(data)} bytes")
        more = await _receive(way, data)
    return Answer(status=status, headers=headers, body=body)


async def _receive(way: socket.socket, data: bytearray) -> bool:
    """Whether more has come."""
    more = await asyncio.get_running_loop().sock_recv(way, PIECE)
    data += more
    if len(data) > LARGEST_ANSWER:
        raise ValueError(f"it has more than {LARGEST_ANSWER} bytes")
    return bool(more)


def _body(headers: Mapping[str, str], data: bytearray, *, over: bool) -> bytes | None:
    """What the answer says, once it is all there; `over`: nothing more comes."""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return _joined(data) if over or data.endswith(LAST_CHUNK) else None
    if "content-length" in headers:
        size = int(headers["content-length"])
        return bytes(data[:size]) if len(data) >= size else None
    return bytes(data) if over else None


def _joined(data: bytearray) -> bytes | None:
    """What the chunks hold; None where the last of them is missing."""
    parts: list[bytes] = []
    at = 0
    while (end := data.find(b"\r\n", at)) >= 0:
        size = int(data[at:end].partition(b";")[0], 16)
        if not size:
            return b"".join(parts)
        at = end + 2 + size + 2
        parts.append(bytes(data[end + 2 : at - 2]))
    return None
