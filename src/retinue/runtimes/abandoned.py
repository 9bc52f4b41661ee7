"""Children of launches that came to nothing: seen off, and reaped."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress

from retinue.processes import exited

ABANDON_S = 5.0


async def abandoned(control: socket.socket, said: bytearray) -> None:
    """Of a launch that came to nothing no process is left.

    A child that was made all the same, however late, sees that nobody is there
    and ends; it is ours to reap.
    """
    loop = asyncio.get_running_loop()
    with suppress(OSError):
        control.shutdown(socket.SHUT_WR)
        while more := await loop.sock_recv(control, 4096):
            said += more
    if pid := _told(said):
        await reaped(pid)


def abandon(control: socket.socket, said: bytearray) -> None:
    """The same where nothing else is to be done meanwhile, within a bound."""
    with control, suppress(OSError):
        control.settimeout(ABANDON_S)
        control.shutdown(socket.SHUT_WR)
        while more := control.recv(4096):
            said += more
    if pid := _told(said):
        reap(pid)


def _told(said: bytearray) -> int:
    """The number of a child that a fork server told of; 0 where it made none."""
    word, _, rest = bytes(said).partition(b"\n")[0].partition(b" ")
    return int(rest) if word == b"pid" and rest.isdigit() else 0


async def reaped(pid: int) -> None:
    """A child of ours has ended, and nothing is left of it."""
    try:
        await exited(pid)
    except OSError:
        return  # no descriptor is free: it goes with us
    reap(pid)


def reap(pid: int) -> None:
    """The same where nothing else is to be done meanwhile."""
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)
