"""HTTP client for providers, on aiohttp's: connection pool, TLS, proxies and timeouts."""

from __future__ import annotations

import asyncio
import io
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

import aiohttp
from aiohttp.connector import Connection
from yarl import URL

CONNECT_SECONDS = 30
IDLE_SECONDS = 30  # how long an unused connection stays in the pool
# Longest wait for the head of an answer, and between two pieces of its body.
SILENCE_SECONDS = 900
LARGEST_HEADER = 64 * 1024
READ_AHEAD = 64 * 1024  # aiohttp stops reading at twice as many unread bytes
LARGEST_IN_MEMORY = 16 * 1024 * 1024  # largest answer that is read into memory
SENT_AT_ONCE = 1024 * 1024  # larger requests are written in steps
LOOPBACK = ("127.0.0.1", "localhost", "::1")
OVERLOADED = (429, 503, 529)
# Errors with an overload status for which a retry is useless: the account is empty.
EMPTY_ACCOUNT = (b"insufficient_quota", b"billing_hard_limit", b"credit balance is too low")
HTTP_DATE = "%a, %d %b %Y %H:%M:%S GMT"


class Unreachable(Exception):
    """The provider did not answer; the message says why."""


class AnswerCut(Unreachable):
    """The answer ended before its last byte; the message says why."""


@dataclass(frozen=True, kw_only=True)
class OutgoingRequest:
    method: str
    url: str
    headers: list[tuple[str, str]]
    body: bytes = field(repr=False)


class ProviderReply:
    """Answer whose head has arrived and whose body is still being received."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.status = response.status
        self.reason = response.reason or ""
        self.headers = response.headers
        self.length = response.content_length
        self._content = response.content
        self._broken: BaseException | None = None
        # The end of the connection ends a body without a length, and aiohttp takes a reset for
        # such an end. Without this, half an answer would pass for a whole one.
        connection = response.connection
        if self.length is None and connection is not None and connection.protocol is not None:
            closed = connection.protocol.closed
            if closed is not None:
                closed.add_done_callback(self._note_reset)

    def _note_reset(self, closed: asyncio.Future[None]) -> None:
        self._broken = None if closed.cancelled() else closed.exception()

    async def read_piece(self) -> bytes:
        """Return the bytes that have arrived, at least one; none at the end of the answer.

        Raises:
            AnswerCut: the answer is not whole.
        """
        try:
            piece = await self._content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise AnswerCut(f"its answer was cut: {_describe_failure(error)}") from error
        if not piece and self._broken is not None:
            raise AnswerCut(f"its answer was cut: {self._broken}")
        return piece

    async def read(self) -> bytes:
        """Read the whole body into memory.

        Raises:
            AnswerCut: the body is cut or too long.
        """
        body = bytearray()
        while piece := await self.read_piece():
            body += piece
            if len(body) > LARGEST_IN_MEMORY:
                raise AnswerCut(f"its answer is too long (limit {LARGEST_IN_MEMORY >> 20} MiB)")
        return bytes(body)


class _Connector(aiohttp.TCPConnector):
    """Connection pool that drops connections on which bytes arrived between two requests.

    aiohttp would take such bytes for the answer to the next request, which may be another child's.
    """

    async def _get(self, key: Any, traces: Any) -> Connection | None:
        while (connection := await super()._get(key, traces)) is not None:
            if connection.protocol is not None and not connection.protocol.should_close:
                break
            connection.close()
        return connection


class Upstream:
    """HTTP client with a connection pool. Create it in a running event loop."""

    def __init__(self) -> None:
        self._proxies = getproxies_environment()
        self._context: ssl.SSLContext | None = None
        self._session = aiohttp.ClientSession(
            # No limit: the rate limiter and the children's connection limits bound the number.
            connector=_Connector(limit=0, keepalive_timeout=IDLE_SECONDS),
            # A cookie that one child's request brought must not be sent with another's.
            cookie_jar=aiohttp.DummyCookieJar(),
            # Compressed answers reach the child as they are; the usage meter decompresses a copy.
            auto_decompress=False,
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
            read_bufsize=READ_AHEAD,
            max_line_size=LARGEST_HEADER,
            max_field_size=LARGEST_HEADER,
            timeout=aiohttp.ClientTimeout(
                total=None, connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS
            ),
        )

    async def close(self) -> None:
        await self._session.close()

    @asynccontextmanager
    async def ask(self, out: OutgoingRequest) -> AsyncIterator[ProviderReply]:
        """Send a request and yield the answer as soon as its head has arrived.

        Raises:
            Unreachable: no head arrived.
        """
        try:
            response = await self._send(out)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unreachable(_describe_failure(error)) from error
        # Leaving the context with unread bytes closes the connection instead of pooling it.
        async with response:
            yield ProviderReply(response)

    async def fetch(
        self, url: str, headers: list[tuple[str, str]], seconds: float
    ) -> tuple[bytes, str]:
        """GET a small answer; return its body and an empty text, or no body and the reason."""
        try:
            async with asyncio.timeout(seconds):
                out = OutgoingRequest(method="GET", url=url, headers=headers, body=b"")
                async with self.ask(out) as reply:
                    body = await reply.read()
        except TimeoutError:
            return b"", f"no answer within {seconds:g} s"
        except Unreachable as error:
            return b"", f"cannot be reached: {error}"
        refused = {401: "the key is refused", 403: "the key is refused"}.get(reply.status)
        if reply.status != 200:
            return b"", refused or f"it answered with status {reply.status}"
        return body, ""

    async def _send(self, out: OutgoingRequest) -> aiohttp.ClientResponse:
        # `encoded`: the path was checked in this spelling and must not change.
        url = URL(out.url, encoded=True)
        # The key takes the place of a user in the address; aiohttp refuses to choose.
        if any(name.lower() == "authorization" for name, _ in out.headers):
            url = url.with_user(None)
        # Not by `trust_env`: that would also send passwords from ~/.netrc.
        proxy = select_proxy(out.url, self._proxies)
        encrypted = url.scheme == "https" or (proxy or "").startswith("https:")
        large = len(out.body) > SENT_AT_ONCE
        return await self._session.request(
            out.method,
            url,
            headers=out.headers,
            data=(io.BytesIO(out.body) if large else out.body) if out.body else None,
            # Another address must not receive the key.
            allow_redirects=False,
            proxy=proxy,
            ssl=await self._load_tls_context() if encrypted else True,
        )

    async def _load_tls_context(self) -> ssl.SSLContext:
        # In a thread: it reads all certificates of the system, or those of SSL_CERT_FILE.
        if self._context is None:
            self._context = await asyncio.to_thread(ssl.create_default_context)
            self._context.set_alpn_protocols(["http/1.1"])
        return self._context


def _describe_failure(error: Exception) -> str:
    """Return the reason without aiohttp's repetition of the address."""
    match error:
        case aiohttp.ClientHttpProxyError():
            return f"the proxy answered {error.status} {error.message[:80]}"
        case aiohttp.ClientConnectorCertificateError():
            return str(error.certificate_error)
        case aiohttp.ConnectionTimeoutError():
            return f"no connection within {CONNECT_SECONDS} s"
        case TimeoutError():
            return f"no data for {SILENCE_SECONDS} s"
        case aiohttp.ClientConnectorError():
            number = error.os_error.errno or 0
            # asyncio's own text only repeats the address; a failed name lookup has no such number.
            return os.strerror(number) if number > 0 else str(error.os_error.strerror or error)
        case aiohttp.ServerDisconnectedError():
            return "the connection was closed"
        case aiohttp.NonHttpUrlClientError() | aiohttp.InvalidURL():
            return f"{error} is not an HTTP address"
        case aiohttp.ClientResponseError():
            return f"its answer is not valid HTTP: {error.message[:200]}"
    return str(error)[:200] or type(error).__name__


def select_proxy(url: str, proxies: Mapping[str, str]) -> str | None:
    """Return the proxy that the environment sets for an address; none for this machine."""
    parts = urlsplit(url)
    if not proxies or parts.hostname in LOOPBACK or proxy_bypass(parts.netloc):
        return None
    return proxies.get(parts.scheme)


def parse_retry_after(value: str, now: float) -> int | None:
    """Return the milliseconds that a Retry-After header asks for; None if it is unreadable."""
    # The header holds seconds or an HTTP date.
    try:
        return max(0, int(float(value) * 1000))
    except (ValueError, OverflowError):
        pass
    try:
        moment = datetime.strptime(value, HTTP_DATE).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
    return max(0, int((moment - now) * 1000))
