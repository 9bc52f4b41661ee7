"""HTTP out: a request goes to a provider as it came, but for the key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import time
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

import aiohttp
from yarl import URL

CONNECT_SECONDS = 30
SILENCE_SECONDS = 900
READ_AHEAD = 256 * 1024  # of each answer, when a child reads more slowly than its model writes
HERE = ("127.0.0.1", "localhost", "::1")
OVERLOADED = (429, 503, 529)
# Nobody gets further by waiting: the account is empty, and says so with the same number.
FOR_GOOD = (b"insufficient_quota", b"billing_hard_limit", b"credit balance is too low")
HTTP_DATE = "%a, %d %b %Y %H:%M:%S GMT"
OWN_HEADERS = frozenset({"User-Agent", "Accept", "Accept-Encoding", "Content-Type"})


class Unreachable(Exception):
    """No answer came; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Outgoing:
    method: str
    url: str
    headers: list[tuple[str, str]]
    body: bytes = field(repr=False)


class Upstream:
    """Connections to providers, kept for the next request."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
            # How long it may be silent is watched here: aiohttp would set a clock anew for
            # every piece that comes.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=READ_AHEAD,
            skip_auto_headers=OWN_HEADERS,
            # It would ask the environment anew in another thread for every request, and put
            # what ~/.netrc holds for a host in the place of the key.
            trust_env=False,
        )
        self._proxies = getproxies_environment()

    async def close(self) -> None:
        await self._session.close()

    @asynccontextmanager
    async def ask(self, out: Outgoing) -> AsyncIterator[aiohttp.ClientResponse]:
        """The head of the answer is there; its body comes as the provider sends it.

        Raises:
            Unreachable: no head came.
        """
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                response = await self._session.request(
                    out.method,
                    URL(out.url, encoded=True),
                    headers=out.headers,
                    data=out.body or None,
                    allow_redirects=False,
                    proxy=proxy_for(out.url, self._proxies),
                )
        except (aiohttp.ClientError, OSError) as error:
            system = getattr(error, "os_error", error)
            why = getattr(system, "strerror", None) or str(error)
            raise Unreachable(why or f"no answer within {SILENCE_SECONDS} s") from error
        try:
            yield response
        finally:
            response.close() if not response.content.at_eof() else response.release()

    async def rest(self, response: aiohttp.ClientResponse) -> bytes:
        """The whole body of an answer that is not passed on as it comes.

        Raises:
            Unreachable: it did not come to its end.
        """
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                return await response.read()
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"its answer was cut: {error}") from error

    async def look(
        self, url: str, headers: list[tuple[str, str]], seconds: float
    ) -> tuple[bytes, str]:
        """The body of a small answer, or why there is none."""
        try:
            async with asyncio.timeout(seconds):
                out = Outgoing(method="GET", url=url, headers=headers, body=b"")
                async with self.ask(out) as response:
                    body = await response.read()
        except TimeoutError:
            return b"", f"no answer within {seconds:g} s"
        except (Unreachable, aiohttp.ClientError) as error:
            return b"", f"cannot be reached: {error}"
        refused = {401: "the key is refused", 403: "the key is refused"}.get(response.status)
        if response.status != 200:
            return b"", refused or f"it answered {response.status}"
        return body, ""


def proxy_for(url: str, proxies: Mapping[str, str]) -> str | None:
    """The proxy that the environment wants for an address; what is on this machine has none."""
    parts = urlsplit(url)
    if not proxies or parts.hostname in HERE or proxy_bypass(parts.netloc):
        return None
    return proxies.get(parts.scheme)


class Silence:
    """Ends an answer of which nothing comes any more."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.broken = True  # set by the reader with every piece
        self._response = response
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Silence:
        self._look()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        if not self.broken:
            self._response.close()
            return
        self.broken = False
        self._timer = asyncio.get_running_loop().call_later(SILENCE_SECONDS, self._look)


def retry_after_ms(value: str | None, now: float | None = None) -> int | None:
    """What a Retry-After header asks for; None when it asks for nothing that can be read."""
    if value is None:
        return None
    try:
        return max(0, int(float(value) * 1000))
    except (ValueError, OverflowError):
        pass
    try:
        moment = datetime.strptime(value, HTTP_DATE).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
    return max(0, int((moment - (time() if now is None else now)) * 1000))
