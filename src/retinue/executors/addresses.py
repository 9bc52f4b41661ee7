"""MCP servers at an address: each message a request over HTTP, from within the child's boundary.

Loaded only where a member has one.
"""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from urllib.parse import urlsplit

from retinue.executors.programs import LONGEST_LINE, TOO_LONG, Gone
from retinue.wire import rpc

ACCEPTED = {
    "accept": "application/json, text/event-stream",
    "content-type": "application/json",
    "accept-encoding": "identity",
}
SESSION = "mcp-session-id"
SHOWN = 400  # bytes of an answer that is none
CLOSE_SECONDS = 1.0


class Address:
    """Threads wait for the answers. Where nobody does any more, they are cut off."""

    remark = ""

    def __init__(self, url: str, headers: Mapping[str, str], seconds: float) -> None:
        self._url = urlsplit(url)
        self._headers = {**ACCEPTED, **headers}
        self._seconds = seconds
        self._session = ""
        self._telling: set[asyncio.Task[None]] = set()
        self.over = ""  # that it knows nothing of us any more, once it said so

    async def open(self) -> None:
        pass

    async def exchange(self, message: rpc.Message) -> rpc.Message:
        try:
            return await self._ask("POST", rpc.to_line(message), rpc.headers_of(message), message)
        except http.client.HTTPException as fault:
            raise rpc.Failed(f"its answer is no HTTP: {type(fault).__name__}") from None

    def tell(self, message: rpc.Message) -> None:
        async def told() -> None:
            with suppress(rpc.Failed, OSError):
                async with asyncio.timeout(self._seconds):
                    await self.exchange(message)

        task = asyncio.create_task(told())
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def close(self) -> None:
        """What the server keeps for us is given up, where it lets us say so."""
        if self._session and not self.over:
            with suppress(OSError, http.client.HTTPException):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._ask("DELETE", b"", {})

    async def _ask(
        self, method: str, body: bytes, more: Mapping[str, str], asked: rpc.Message | None = None
    ) -> rpc.Message:
        url = self._url
        kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        way = kind(url.hostname or "", url.port, timeout=self._seconds)
        held: list[socket.socket] = []  # the way itself may let go of it before all is read
        over = threading.Event()

        def work() -> rpc.Message:
            with closing(way):
                way.connect()
                held.append(way.sock)
                if over.is_set():
                    return {}
                target = (url.path or "/") + (f"?{url.query}" if url.query else "")
                session = {SESSION: self._session} if self._session else {}
                way.request(method, target, body, {**self._headers, **more, **session})
                answer = way.getresponse()
                self._session = answer.headers.get(SESSION) or self._session
                return self._read(answer, asked) if asked is not None else {}

        try:
            return await asyncio.to_thread(work)
        finally:
            over.set()
            for each in held:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _read(self, answer: http.client.HTTPResponse, asked: rpc.Message) -> rpc.Message:
        """The answer to what was asked; to a notice there is none."""
        if answer.status == http.HTTPStatus.NOT_FOUND and self._session:
            self.over = "it ended the session"
            raise Gone(self.over)
        if "event-stream" in answer.headers.get("content-type", ""):
            number = rpc.number_of(asked) if "id" in asked else None
            for each in _events(answer):
                if rpc.answered(each) == number:
                    return each
            raise rpc.Failed("its answer was cut off")
        data = answer.read(LONGEST_LINE + 1)
        if len(data) > LONGEST_LINE:
            raise rpc.Failed(TOO_LONG)
        message = rpc.parse(data)
        if message is not None and ("result" in message or "error" in message):
            return message
        if "id" not in asked and answer.status < http.HTTPStatus.MULTIPLE_CHOICES:
            return {}
        said = data[:SHOWN].decode("utf-8", "replace").strip()
        raise rpc.Failed(f"it answered with HTTP {answer.status}: {said}")


def _events(answer: http.client.HTTPResponse) -> Iterator[rpc.Message]:
    """The messages of a stream, as they come.

    Raises:
        Failed: one of them is too long.
    """
    held: list[bytes] = []
    left = LONGEST_LINE
    while line := answer.readline(LONGEST_LINE + 1):
        left -= len(line)
        if left < 0:
            raise rpc.Failed(TOO_LONG)
        if line.startswith(b"data:"):
            held.append(line[5:].strip())
        elif not line.strip() and held:
            message = rpc.parse(b"\n".join(held))
            held, left = [], LONGEST_LINE
            if message is not None:
                yield message
