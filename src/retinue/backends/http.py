"""One request over HTTP/1.1, on a connection of its own, to the gateway on this child's loopback.

Nothing more of HTTP is needed than what the gateway says, so no library is: a child that runs one
copies megabytes of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from retinue.version import VERSION

PIECE = 256 * 1024
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
    """The whole answer.

    Raises:
        Unanswered: there is none.
    """
    place = urlsplit(url)
    path = f"{place.path}?{place.query}" if place.query else place.path
    head = {
        "host": place.netloc,
        "content-type": "application/json",
        "content-length": str(len(body)),
        "accept-encoding": "identity",
        "user-agent": f"retinue/{VERSION}",
        "connection": "close",
        **headers,
    }
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
    try:
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
    except OSError as fault:
        raise Unanswered(f"nobody answers at {place.netloc}: {fault.strerror or fault}") from fault
    try:
        writer.write("\r\n".join(lines).encode() + END_OF_HEAD + body)
        await writer.drain()
        return await _answer(reader)
    except (OSError, EOFError, asyncio.LimitOverrunError) as fault:
        raise Unanswered(f"the answer was cut: {fault}") from fault
    except (ValueError, IndexError) as fault:
        raise Unanswered(f"the answer is no HTTP: {fault}") from fault
    finally:
        writer.close()


async def _answer(reader: asyncio.StreamReader) -> Answer:
    head = (await reader.readuntil(END_OF_HEAD)).decode("latin-1")
    first, *lines = head.split("\r\n")
    status = int(first.split(" ", 2)[1])
    pairs = (line.partition(":") for line in lines if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if headers.get("transfer-encoding") == "chunked":
        body = await _chunks(reader)
    elif "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    else:
        body = await reader.read()
    return Answer(status=status, headers=headers, body=body)


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    """All chunks, put together once the last of them is there: they are many, and small."""
    data = bytearray()
    while more := await reader.read(PIECE):
        data += more
        if data.endswith(LAST_CHUNK) and (whole := _joined(data)) is not None:
            return whole
        if len(data) > LARGEST_ANSWER:
            raise ValueError(f"more than {LARGEST_ANSWER} bytes")
    raise EOFError("its end did not come")


def _joined(data: bytearray) -> bytes | None:
    """What the chunks hold; None where it was not the last that ended so."""
    parts: list[bytes] = []
    at = 0
    while (end := data.find(b"\r\n", at)) >= 0:
        size = int(data[at:end].partition(b";")[0], 16)
        if not size:
            return b"".join(parts)
        at = end + 2 + size + 2
        parts.append(bytes(data[end + 2 : at - 2]))
    return None
