"""The steward's end of the launch handshake."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import pytest

from retinue.runtime.launch_handshake import exchange_order


@pytest.mark.parametrize("turns", range(6))
def test_a_cancelled_exchange_loses_no_pid(turns: int) -> None:
    """The pid is in the buffer or still in the socket, so that the child can be reaped."""
    said = bytearray()

    async def cancel_after_some_turns(ours: socket.socket, theirs: socket.socket) -> None:
        exchange = asyncio.create_task(exchange_order(ours, b"", said))
        await asyncio.sleep(0)
        theirs.send(b"pid 7\n")
        for _ in range(turns):
            await asyncio.sleep(0)
        exchange.cancel()
        with suppress(asyncio.CancelledError):
            await exchange

    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        asyncio.run(cancel_after_some_turns(ours, theirs))
        with suppress(BlockingIOError):
            said += ours.recv(100)
    assert said == b"pid 7\n"
