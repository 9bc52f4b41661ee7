"""Connection to an MCP server over HTTP, from inside the child's isolation.

Imported only if a member has such a server.
"""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from urllib.parse import urlsplit

from retinue.team.tools import mcp_messages
from retinue.team.tools.mcp_stdio import LONGEST_LINE, TOO_LONG, ServerGone

ACCEPTED = {
    "accept": "application/json, text/event-stream",
    "content-type": "application/json",
    "accept-encoding": "identity",
}
SESSION = "mcp-session-id"
SHOWN = 400  # bytes of an invalid answer in an error text
CLOSE_SECONDS = 1.0


class Address:
    """HTTP connection. Each request runs in a thread; cancelling it closes the socket."""

    remark = ""

    def __init__(self, url: str, headers: Mapping[str, str], seconds: float) -> None:
        self._url = urlsplit(url)
        self._headers = {**ACCEPTED, **headers}
        self._seconds = seconds
        self._session = ""
        self._telling: set[asyncio.Task[None]] = set()
        self.over = ""  # why the session ended, once it has

    async def open(self) -> None:
        pass

    async def send_request(self, message: mcp_messages.Message) -> mcp_messages.Message:
        try:
            return await self._ask(
                "POST", mcp_messages.to_line(message), mcp_messages.build_headers(message), message
            )
        except http.client.HTTPException as fault:
            raise mcp_messages.McpError(f"its answer is not HTTP: {type(fault).__name__}") from None

    def tell(self, message: mcp_messages.Message) -> None:
        async def send() -> None:
            with suppress(mcp_messages.McpError, OSError):
                async with asyncio.timeout(self._seconds):
                    await self.send_request(message)

        task = asyncio.create_task(send())
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def close(self) -> None:
        """End the session on the server."""
        if self._session and not self.over:
            with suppress(OSError, http.client.HTTPException):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._ask("DELETE", b"", {})

    async def _ask(
        self,
        method: str,
        body: bytes,
        more: Mapping[str, str],
        asked: mcp_messages.Message | None = None,
    ) -> mcp_messages.Message:
        url = self._url
        kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        connection = kind(url.hostname or "", url.port, timeout=self._seconds)
        # The connection object may drop its socket before the whole answer is read.
        held: list[socket.socket] = []
        over = threading.Event()

        def work() -> mcp_messages.Message:
            with closing(connection):
                connection.connect()
                held.append(connection.sock)
                # The request was cancelled while the thread connected.
                if over.is_set():
                    return {}
                target = (url.path or "/") + (f"?{url.query}" if url.query else "")
                session = {SESSION: self._session} if self._session else {}
                connection.request(method, target, body, {**self._headers, **more, **session})
                answer = connection.getresponse()
                self._session = answer.headers.get(SESSION) or self._session
                return self._read(answer, asked) if asked is not None else {}

        try:
            return await asyncio.to_thread(work)
        finally:
            # Shutting the socket down ends the thread, which cannot be cancelled itself.
            over.set()
            for each in held:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _read(
        self, answer: http.client.HTTPResponse, asked: mcp_messages.Message
    ) -> mcp_messages.Message:
        """Return the answer to a request; an empty message for a notification."""
        # MCP: 404 for a request with a session id means that the session is over.
        if answer.status == http.HTTPStatus.NOT_FOUND and self._session:
            self.over = "it ended the session"
            raise ServerGone(self.over)
        if "event-stream" in answer.headers.get("content-type", ""):
            number = mcp_messages.read_number(asked) if "id" in asked else None
            for each in _iter_events(answer):
                if mcp_messages.find_answered_number(each) == number:
                    return each
            raise mcp_messages.McpError("its answer was cut off")
        data = answer.read(LONGEST_LINE + 1)
        if len(data) > LONGEST_LINE:
            raise mcp_messages.McpError(TOO_LONG)
        message = mcp_messages.parse(data)
        if message is not None and ("result" in message or "error" in message):
            return message
        if "id" not in asked and answer.status < http.HTTPStatus.MULTIPLE_CHOICES:
            return {}
        said = data[:SHOWN].decode("utf-8", "replace").strip()
        raise mcp_messages.McpError(f"it answered with HTTP {answer.status}: {said}")


def _iter_events(answer: http.client.HTTPResponse) -> Iterator[mcp_messages.Message]:
    """Yield the messages of an SSE stream.

    Raises:
        McpError: a message is too long.
    """
    held: list[bytes] = []
    left = LONGEST_LINE
    while line := answer.readline(LONGEST_LINE + 1):
        left -= len(line)
        if left < 0:
            raise mcp_messages.McpError(TOO_LONG)
        if line.startswith(b"data:"):
            held.append(line[5:].strip())
        elif not line.strip() and held:
            message = mcp_messages.parse(b"\n".join(held))
            held = []
            left = LONGEST_LINE
            if message is not None:
                yield message
