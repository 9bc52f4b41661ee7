"""HTTP client for providers: connection pool, TLS, proxies and timeouts."""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from retinue.gateway.http_connection import ConnectionCut, ProviderConnection
from retinue.http_framing import ResponseHead

CONNECT_SECONDS = 30
IDLE_SECONDS = 30  # how long an unused connection stays in the pool
# Longest wait for the head of an answer, and between two pieces of its body.
SILENCE_SECONDS = 900
LARGEST_KEPT = 16 * 1024 * 1024  # largest answer that is read into memory
HERE = ("127.0.0.1", "localhost", "::1")
OVERLOADED = (429, 503, 529)
# Errors with an overload status for which a retry is useless: the account is empty.
FOR_GOOD = (b"insufficient_quota", b"billing_hard_limit", b"credit balance is too low")
HTTP_DATE = "%a, %d %b %Y %H:%M:%S GMT"
PORTS = {"http": 80, "https": 443}

Place = tuple[str, str | None]  # origin of the provider, and the proxy to it


class Unreachable(Exception):
    """The provider did not answer; the message says why."""


@dataclass(frozen=True, kw_only=True)
class OutgoingRequest:
    method: str
    url: str
    headers: list[tuple[str, str]]
    body: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class ProviderReply:
    """Answer whose head has arrived and whose body is still being received."""

    head: ResponseHead
    line: ProviderConnection

    def close(self) -> None:
        """Cut the answer because the provider went silent."""
        self.line.close(f"no data for {SILENCE_SECONDS} s")

    async def read(self) -> bytes:
        """Read the whole body into memory.

        Raises:
            Unreachable: the body is cut or too long.
        """
        kept = bytearray()

        def keep(piece: bytes, last: bool) -> bool:
            kept.extend(piece)
            if len(kept) > LARGEST_KEPT:
                self.line.close(f"it is too long (limit {LARGEST_KEPT >> 20} MiB)")
            return True

        self.line.stream_to(keep)
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                await self.line.wait_streamed()
        except (ConnectionCut, TimeoutError) as why:
            raise Unreachable(f"its answer was cut: {why}") from why
        return bytes(kept)


class Upstream:
    """HTTP client with a connection pool."""

    def __init__(self) -> None:
        self._proxies = getproxies_environment()
        self._idle: dict[Place, list[tuple[ProviderConnection, asyncio.TimerHandle]]] = defaultdict(
            list
        )
        self._context: ssl.SSLContext | None = None

    def close(self) -> None:
        for lines in self._idle.values():
            for line, timer in lines:
                timer.cancel()
                line.close()

    @asynccontextmanager
    async def ask(self, out: OutgoingRequest) -> AsyncIterator[ProviderReply]:
        """Send a request and yield the answer as soon as its head has arrived.

        Raises:
            Unreachable: no head arrived.
        """
        parts = urlsplit(out.url)
        proxy = select_proxy(out.url, self._proxies)
        place = f"{parts.scheme}://{parts.netloc}", proxy
        request = _encode_request(out, parts, proxy)
        line = self._take_idle(place) or await self._connect(parts, proxy)
        try:
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    head = await line.ask(request)
            except (ConnectionCut, TimeoutError) as why:
                raise Unreachable(str(why) or f"no answer within {SILENCE_SECONDS} s") from why
            yield ProviderReply(head=head, line=line)
        finally:
            # A connection with unread bytes must not be reused for the next request.
            if line.keeps:
                self._keep(place, line)
            else:
                line.close()

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
        status = reply.head.status
        refused = {401: "the key is refused", 403: "the key is refused"}.get(status)
        if status != 200:
            return b"", refused or f"it answered with status {status}"
        return body, ""

    def _take_idle(self, place: Place) -> ProviderConnection | None:
        """Return the most recently used connection, so that surplus ones expire."""
        lines = self._idle[place]
        while lines:
            line, timer = lines.pop()
            timer.cancel()
            if not line.closed:
                return line
        return None

    def _keep(self, place: Place, line: ProviderConnection) -> None:
        lines = self._idle[place]
        while lines and lines[0][0].closed:
            lines.pop(0)
        timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, line.close)
        lines.append((line, timer))

    async def _connect(self, parts: SplitResult, proxy: str | None) -> ProviderConnection:
        """Connect directly or through the proxy.

        Raises:
            Unreachable: the connection failed.
        """
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                if proxy is None:
                    return await self._open(parts)
                line = await self._open(urlsplit(proxy))
                return (
                    line if parts.scheme == "http" else await self._open_tunnel(line, parts, proxy)
                )
        except (OSError, ssl.SSLError, ConnectionCut, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise Unreachable(why or f"no connection within {CONNECT_SECONDS} s") from error

    async def _open(self, parts: SplitResult) -> ProviderConnection:
        if parts.scheme not in PORTS or not parts.hostname:
            raise ValueError(f"{parts.scheme}://{parts.hostname} is not an HTTP address")
        _, line = await asyncio.get_running_loop().create_connection(
            ProviderConnection,
            parts.hostname,
            parts.port or PORTS[parts.scheme],
            ssl=await self._load_tls_context() if parts.scheme == "https" else None,
            happy_eyeballs_delay=0.25,
        )
        return line

    async def _open_tunnel(
        self, line: ProviderConnection, parts: SplitResult, proxy: str
    ) -> ProviderConnection:
        """Open a TLS tunnel with CONNECT; the proxy sees only host and port."""
        place = f"{parts.hostname}:{parts.port or PORTS[parts.scheme]}"
        key = _make_basic_auth("Proxy-Authorization", proxy)
        try:
            head = await line.ask(
                _encode_head([f"CONNECT {place} HTTP/1.1", f"Host: {place}", *key])
            )
            if head.status != 200:
                raise ValueError(f"the proxy answered {head.status} {head.reason[:80]}")
            transport = await asyncio.get_running_loop().start_tls(
                line.transport, line, await self._load_tls_context(), server_hostname=parts.hostname
            )
            if transport is None:
                raise ValueError("the proxy closed the connection")
        except BaseException:
            line.close()
            raise
        line.use_tls(transport)
        return line

    async def _load_tls_context(self) -> ssl.SSLContext:
        # In a thread: it reads all certificates of the system.
        if self._context is None:
            self._context = await asyncio.to_thread(ssl.create_default_context)
            self._context.set_alpn_protocols(["http/1.1"])
        return self._context


def _encode_request(out: OutgoingRequest, parts: SplitResult, proxy: str | None) -> bytes:
    """Return the request as bytes.

    Raises:
        Unreachable: a header contains a line break.
    """
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    plain = proxy is not None and parts.scheme == "http"
    place = parts.netloc.rpartition("@")[2]
    lines = [
        f"{out.method} {f'http://{place}' if plain else ''}{target} HTTP/1.1",
        f"Host: {place}",
        *(f"{name}: {value}" for name, value in out.headers),
    ]
    if not any(name.lower() == "authorization" for name, _ in out.headers):
        lines += _make_basic_auth("Authorization", out.url)
    if plain and proxy:
        lines += _make_basic_auth("Proxy-Authorization", proxy)
    if out.body or out.method != "GET":
        lines.append(f"Content-Length: {len(out.body)}")
    return _encode_head(lines) + out.body


def _encode_head(lines: list[str]) -> bytes:
    text = "\r\n".join(lines)
    # A line break in a value would inject a second header.
    if text.count("\n") != len(lines) - 1 or text.count("\r") != len(lines) - 1:
        raise Unreachable("a header contains a line break")
    return text.encode("utf-8", "surrogateescape") + b"\r\n\r\n"


def _make_basic_auth(header: str, url: str) -> list[str]:
    """Return a Basic authorization header if the address contains a user."""
    parts = urlsplit(url)
    if parts.username is None:
        return []
    words = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return [f"{header}: Basic {b64encode(words.encode()).decode()}"]


def select_proxy(url: str, proxies: Mapping[str, str]) -> str | None:
    """Return the proxy that the environment sets for an address; none for this machine."""
    parts = urlsplit(url)
    if not proxies or parts.hostname in HERE or proxy_bypass(parts.netloc):
        return None
    return proxies.get(parts.scheme)


class SilenceTimeout:
    """Timeout that cuts an answer after SILENCE_SECONDS without data.

    The reader sets `broken` with every piece. A periodic check costs less than a timer that is
    restarted with every piece.
    """

    def __init__(self, reply: ProviderReply) -> None:
        self.broken = True  # data arrived since the last check
        self._reply = reply
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> SilenceTimeout:
        self._look()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        if not self.broken:
            self._reply.close()
            return
        self.broken = False
        self._timer = asyncio.get_running_loop().call_later(SILENCE_SECONDS, self._look)


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
