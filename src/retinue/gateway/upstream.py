"""HTTP out: a request goes to a provider as it came, but for the key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import time

import aiohttp
from yarl import URL

CONNECT_SECONDS = 30
SILENCE_SECONDS = 900
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
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS
            ),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=OWN_HEADERS,
            trust_env=True,
        )

    async def close(self) -> None:
        await self._session.close()

    @asynccontextmanager
    async def ask(self, out: Outgoing) -> AsyncIterator[aiohttp.ClientResponse]:
        """The head of the answer is there; its body comes as the provider sends it.

        Raises:
            Unreachable: no head came.
        """
        try:
            response = await self._session.request(
                out.method,
                URL(out.url, encoded=True),
                headers=out.headers,
                data=out.body or None,
                allow_redirects=False,
            )
        except (aiohttp.ClientError, OSError) as error:
            system = getattr(error, "os_error", error)
            raise Unreachable(getattr(system, "strerror", None) or str(error)) from error
        try:
            yield response
        finally:
            response.close() if not response.content.at_eof() else response.release()

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
