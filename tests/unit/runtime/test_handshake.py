"""The steward's end of the launch handshake."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from contextlib import suppress

import pytest

from retinue.child.control_protocol import Order
from retinue.runtime.launch_handshake import exchange_order, start_fresh


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


def test_a_launcher_that_is_watched_itself_is_not_ended_a_second_time() -> None:
    """Behind a PID namespace the reported pid is another process here, so the launcher counts."""
    order = Order(
        attempt=1,
        argv=(b"/bin/true",),
        environment={},
        workspace=b"/",
        runtime_folder=b"/",
        timeout_ms=1000,
        graces_ms=(0, 0),
        output_limit_bytes=1,
        limits={},
        contained=False,
    )
    code = "import os, signal; os.write(1, b'pid 1\\n'); signal.pause()"
    launcher = [sys.executable, "-S", "-c", code]
    child = asyncio.run(start_fresh(launcher, order))
    try:
        assert child.identity.pid > 1
        assert child.launcher is None
    finally:
        child.control.close()
        signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
        os.waitid(os.P_PIDFD, child.pidfd, os.WEXITED)
        os.close(child.pidfd)
