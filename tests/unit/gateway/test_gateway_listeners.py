"""Connection limits of a gateway listener."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from retinue.gateway.gateway_listeners import GatewayListener, RequestHandler

BOUND_S = 10.0
MOST = 3
ASKED = b"GET /%b HTTP/1.1\r\nHost: h\r\n\r\n"


class Link:
    """A client connection."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setblocking(False)

    async def ask(self, what: bytes = b"") -> bytes:
        """Send a request; return the first bytes of the answer, or none if it is closed."""
        return await self.send(ASKED % what)

    async def send(self, data: bytes) -> bytes:
        await asyncio.get_running_loop().sock_sendall(self._socket, data)
        return await self.hear()

    async def hear(self) -> bytes:
        try:
            return await asyncio.get_running_loop().sock_recv(self._socket, 4096)
        except ConnectionResetError:
            return b""

    def close(self) -> None:
        self._socket.close()


class Child:
    def __init__(self, port: int) -> None:
        self._port = port
        self.links: list[Link] = []
        self.go_on = asyncio.Event()
        self.asks = 0

    def link(self) -> Link:
        self.links.append(Link(self._port))
        return self.links[-1]


def played(scene: Callable[[Child], Awaitable[None]], silence_s: float = BOUND_S) -> None:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Child]:
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        child = Child(listener.getsockname()[1])
        opening = GatewayListener(listener, _make_handler(child), MOST, silence_s)
        try:
            yield child
        finally:
            await opening.close()
            for link in child.links:
                link.close()

    async def whole() -> None:
        async with asyncio.timeout(BOUND_S), opened() as child:
            await scene(child)

    asyncio.run(whole())


def _make_handler(child: Child) -> RequestHandler:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        child.asks += 1
        if request.path == "/slow":
            await child.go_on.wait()
        return web.Response(text="here")

    return answer


def test_at_the_limit_the_longest_idle_connection_is_closed() -> None:
    async def scene(child: Child) -> None:
        links = [child.link() for _ in range(MOST)]
        # The first connection is used again, so the second one is idle longest.
        for link in (*links, links[0]):
            assert (await link.ask()).startswith(b"HTTP/1.1 200")
        assert (await child.link().ask()).startswith(b"HTTP/1.1 200")
        assert await links[1].hear() == b""
        assert (await links[0].ask()).startswith(b"HTTP/1.1 200")

    played(scene)


@pytest.mark.parametrize("malformed", [b"GARBAGE\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"\0" * 9000])
def test_malformed_requests_leave_nothing_in_the_log(
    malformed: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(child: Child) -> None:
        link = child.link()
        assert (await link.ask()).startswith(b"HTTP/1.1 200")
        assert (await link.send(malformed)).startswith(b"HTTP/1.0 400")

    played(scene)
    assert caplog.records == []


def test_at_the_limit_without_idle_connections_a_new_one_waits() -> None:
    async def scene(child: Child) -> None:
        asked = [asyncio.create_task(child.link().ask(b"slow")) for _ in range(MOST)]
        late = asyncio.create_task(child.link().ask())
        # Poll: no event of this process tells when the kernel has delivered the requests.
        while child.asks < MOST:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert not late.done()
        child.go_on.set()
        assert (await late).startswith(b"HTTP/1.1 200")
        assert all(answer.startswith(b"HTTP/1.1 200") for answer in await asyncio.gather(*asked))

    played(scene)


def test_connections_without_a_request_are_closed() -> None:
    async def scene(child: Child) -> None:
        # More connections than the limit and no requests: only the timeout makes room.
        silent = [child.link() for _ in range(4 * MOST)]
        assert (await child.link().ask()).startswith(b"HTTP/1.1 200")
        assert [await link.hear() for link in silent] == [b""] * len(silent)

    played(scene, silence_s=0.05)
