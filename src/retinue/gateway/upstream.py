"""HTTP out: a request goes to a provider as it came, but for the key."""

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

from retinue.gateway.lines import Cut, Line
from retinue.wire.framing import Head

CONNECT_SECONDS = 30
IDLE_SECONDS = 30  # a connection is kept that long for the next request
SILENCE_SECONDS = 900
LARGEST_KEPT = 16 * 1024 * 1024  # of an answer that does not pass, but is read whole
HERE = ("127.0.0.1", "localhost", "::1")
OVERLOADED = (429, 503, 529)
# Nobody gets further by waiting: the account is empty, and says so with the same number.
FOR_GOOD = (b"insufficient_quota", b"billing_hard_limit", b"credit balance is too low")
HTTP_DATE = "%a, %d %b %Y %H:%M:%S GMT"
PORTS = {"http": 80, "https": 443}

Place = tuple[str, str | None]  # a provider's, and the proxy that leads there


class Unreachable(Exception):
    """No answer came; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Outgoing:
    method: str
    url: str
    headers: list[tuple[str, str]]
    body: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer of which the head is there, and the body comes as the provider sends it."""

    head: Head
    line: Line

    def close(self) -> None:
        """Whoever reads on is told that it was cut."""
        self.line.close("nothing came any more")

    async def read(self) -> bytes:
        """The whole body.

        Raises:
            Unreachable: it did not come to its end.
        """
        kept = bytearray()

        def keep(piece: bytes, last: bool) -> bool:
            kept.extend(piece)
            if len(kept) > LARGEST_KEPT:
                self.line.close("it is too long")
            return True

        self.line.pour(keep)
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                await self.line.poured()
        except (Cut, TimeoutError) as why:
            raise Unreachable(f"its answer was cut: {why}") from why
        return bytes(kept)


class Upstream:
    """Connections to providers, kept for the next request."""

    def __init__(self) -> None:
        self._proxies = getproxies_environment()
        self._idle: dict[Place, list[tuple[Line, asyncio.TimerHandle]]] = defaultdict(list)
        self._context: ssl.SSLContext | None = None

    def close(self) -> None:
        for lines in self._idle.values():
            for line, timer in lines:
                timer.cancel()
                line.close()

    @asynccontextmanager
    async def ask(self, out: Outgoing) -> AsyncIterator[Reply]:
        """The head of the answer is there; its body comes as the provider sends it.

        Raises:
            Unreachable: no head came.
        """
        parts, proxy = urlsplit(out.url), proxy_for(out.url, self._proxies)
        place = f"{parts.scheme}://{parts.netloc}", proxy
        request = _written(out, parts, proxy)
        line = self._kept(place) or await self._connect(parts, proxy)
        try:
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    head = await line.ask(request)
            except (Cut, TimeoutError) as why:
                raise Unreachable(str(why) or f"no answer within {SILENCE_SECONDS} s") from why
            yield Reply(head=head, line=line)
        finally:
            if line.keeps:
                self._keep(place, line)
            else:
                line.close()

    async def look(
        self, url: str, headers: list[tuple[str, str]], seconds: float
    ) -> tuple[bytes, str]:
        """The body of a small answer, or why there is none."""
        try:
            async with asyncio.timeout(seconds):
                out = Outgoing(method="GET", url=url, headers=headers, body=b"")
                async with self.ask(out) as reply:
                    body = await reply.read()
        except TimeoutError:
            return b"", f"no answer within {seconds:g} s"
        except Unreachable as error:
            return b"", f"cannot be reached: {error}"
        status = reply.head.status
        refused = {401: "the key is refused", 403: "the key is refused"}.get(status)
        if status != 200:
            return b"", refused or f"it answered {status}"
        return body, ""

    def _kept(self, place: Place) -> Line | None:
        """The connection that was used last: the others may grow too old."""
        lines = self._idle[place]
        while lines:
            line, timer = lines.pop()
            timer.cancel()
            if not line.closed:
                return line
        return None

    def _keep(self, place: Place, line: Line) -> None:
        lines = self._idle[place]
        while lines and lines[0][0].closed:
            lines.pop(0)
        timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, line.close)
        lines.append((line, timer))

    async def _connect(self, parts: SplitResult, proxy: str | None) -> Line:
        """Raises:
        Unreachable: no connection could be made.
        """
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                if proxy is None:
                    return await self._open(parts)
                line = await self._open(urlsplit(proxy))
                return line if parts.scheme == "http" else await self._tunnel(line, parts, proxy)
        except (OSError, ssl.SSLError, Cut, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise Unreachable(why or f"no connection within {CONNECT_SECONDS} s") from error

    async def _open(self, parts: SplitResult) -> Line:
        if parts.scheme not in PORTS or not parts.hostname:
            raise ValueError(f"{parts.scheme}://{parts.hostname} is no address for HTTP")
        _, line = await asyncio.get_running_loop().create_connection(
            Line,
            parts.hostname,
            parts.port or PORTS[parts.scheme],
            ssl=await self._tls() if parts.scheme == "https" else None,
            happy_eyeballs_delay=0.25,
        )
        return line

    async def _tunnel(self, line: Line, parts: SplitResult, proxy: str) -> Line:
        """The line leads through the proxy, which sees only whereto."""
        place = f"{parts.hostname}:{parts.port or PORTS[parts.scheme]}"
        key = _basic("Proxy-Authorization", proxy)
        try:
            head = await line.ask(_head([f"CONNECT {place} HTTP/1.1", f"Host: {place}", *key]))
            if head.status != 200:
                raise ValueError(f"the proxy answered {head.status} {head.reason[:80]}")
            transport = await asyncio.get_running_loop().start_tls(
                line.transport, line, await self._tls(), server_hostname=parts.hostname
            )
            if transport is None:
                raise ValueError("the proxy closed the connection")
        except BaseException:
            line.close()
            raise
        line.secure(transport)
        return line

    async def _tls(self) -> ssl.SSLContext:
        if self._context is None:  # it reads every certificate there is
            self._context = await asyncio.to_thread(ssl.create_default_context)
            self._context.set_alpn_protocols(["http/1.1"])
        return self._context


def _written(out: Outgoing, parts: SplitResult, proxy: str | None) -> bytes:
    """Raises:
    Unreachable: a header would be two.
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
        lines += _basic("Authorization", out.url)
    if plain and proxy:
        lines += _basic("Proxy-Authorization", proxy)
    if out.body or out.method != "GET":
        lines.append(f"Content-Length: {len(out.body)}")
    return _head(lines) + out.body


def _head(lines: list[str]) -> bytes:
    text = "\r\n".join(lines)
    if text.count("\n") != len(lines) - 1 or text.count("\r") != len(lines) - 1:
        raise Unreachable("a line break in a header would make two of it")
    return text.encode("utf-8", "surrogateescape") + b"\r\n\r\n"


def _basic(header: str, url: str) -> list[str]:
    """The user and the password that an address names."""
    parts = urlsplit(url)
    if parts.username is None:
        return []
    words = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return [f"{header}: Basic {b64encode(words.encode()).decode()}"]


def proxy_for(url: str, proxies: Mapping[str, str]) -> str | None:
    """The proxy that the environment wants for an address; what is on this machine has none."""
    parts = urlsplit(url)
    if not proxies or parts.hostname in HERE or proxy_bypass(parts.netloc):
        return None
    return proxies.get(parts.scheme)


class Silence:
    """Ends an answer of which nothing comes any more."""

    def __init__(self, reply: Reply) -> None:
        self.broken = True  # set by the reader with every piece
        self._reply = reply
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Silence:
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


def retry_after_ms(value: str, now: float) -> int | None:
    """What a Retry-After header asks for; None when it asks for nothing that can be read."""
    try:
        return max(0, int(float(value) * 1000))
    except (ValueError, OverflowError):
        pass
    try:
        moment = datetime.strptime(value, HTTP_DATE).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
    return max(0, int((moment - now) * 1000))
