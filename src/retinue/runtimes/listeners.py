"""Taking over the socket that a child opened for its gateway."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

from retinue.child.listening import DOOR

ANSWER_SECONDS = 5.0


async def handed(way: socket.socket) -> tuple[bytes, socket.socket | None]:
    """What the other end said next, and the socket that came with it."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            said, came, _, _ = socket.recv_fds(way, 4096, 1)
        except BlockingIOError:
            ready = loop.create_future()
            loop.add_reader(way, _wake, ready)
            try:
                await ready
            finally:
                loop.remove_reader(way)
            continue
        return said, socket.socket(fileno=came[0]) if came else None


async def ask_again(runtime_folder: Path) -> socket.socket | None:
    """The socket of a child that an earlier steward had launched; None where it has none."""
    try:
        folder = os.open(runtime_folder, os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    loop = asyncio.get_running_loop()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as way:
            way.setblocking(False)
            async with asyncio.timeout(ANSWER_SECONDS):
                await loop.sock_connect(way, f"/proc/self/fd/{folder}/{DOOR}")
                return (await handed(way))[1]
    except (OSError, TimeoutError):
        return None
    finally:
        os.close(folder)


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
