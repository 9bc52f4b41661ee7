"""The web server's connection to its steward, which is closed when it is idle."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retinue.client.async_client import Remote, connect_steward
from retinue.formats import steward_protocol
from retinue.web.page_steward_connection import StewardConnection

BOUND_S = 20.0


class OneConnection(StewardConnection):
    """Connection to the other end of a socket pair, which the test holds."""

    def __init__(self, ours: socket.socket) -> None:
        super().__init__(Path("/root"), idle_seconds=0.2)
        self._ours = ours

    async def _connect(self, start: bool) -> Remote:
        return await connect_steward(sock=self._ours)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def test_a_request_may_take_longer_than_an_idle_connection_stays_open(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair

    async def read_request() -> dict[str, Any]:
        line = await asyncio.get_running_loop().sock_recv(theirs, 1 << 16)
        return steward_protocol.decode(line)

    async def say(number: int) -> None:
        line = steward_protocol.encode({"id": number, "result": number})
        await asyncio.get_running_loop().sock_sendall(theirs, line)

    async def scene() -> None:
        async with asyncio.timeout(BOUND_S):
            link = OneConnection(ours)
            first = asyncio.create_task(link.call("look.tasks"))
            await say((await read_request())["id"])
            await first
            # The connection is idle from now on, and its timer runs during the next request.
            second = asyncio.create_task(link.call("subagent.integrate"))
            number = (await read_request())["id"]
            closed = asyncio.create_task(read_until_closed())
            done, _ = await asyncio.wait({closed}, timeout=3 * link.idle_seconds)
            assert not done, "the steward would cancel the request"
            await say(number)
            assert await second == number
            # Idle again: now it is closed.
            assert await closed == b""

    async def read_until_closed() -> bytes:
        return await asyncio.get_running_loop().sock_recv(theirs, 1 << 16)

    asyncio.run(scene())
