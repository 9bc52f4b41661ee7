"""The steward's end of the control socket of a child that waits to be released."""

from __future__ import annotations

import asyncio
import socket
import sys
from contextlib import suppress

from retinue.child.control import EXECUTED, GO
from retinue.child.listening import HANDED, LISTEN
from retinue.domain.errors import LaunchFailed
from retinue.runtimes.listeners import handed

LAUNCH_SECONDS = 30.0  # within which whoever is started has to answer
GONE = (BrokenPipeError, ConnectionResetError)


class NoNamespaces(LaunchFailed):
    """The kernel does not give us the namespaces; the message says why."""


class Gate:
    def __init__(self, control: socket.socket, early: bytes) -> None:
        self._control = control
        self._said = early

    def close(self) -> None:
        self._control.close()

    async def listener(self) -> socket.socket | None:
        """The socket that the child opened for its gateway; None when it could not.

        Raises:
            TimeoutError: it said nothing.
        """
        loop = asyncio.get_running_loop()
        with suppress(*GONE):
            async with asyncio.timeout(LAUNCH_SECONDS):
                await loop.sock_sendall(self._control, LISTEN)
                said, found = await handed(self._control)
                self._said += said.removeprefix(HANDED)
                return found
        return None

    async def open(self) -> bytes:
        """The command is executing; what its first process said after that.

        Raises:
            LaunchFailed: it is not, for the reason its first process gave.
            TimeoutError: it said nothing.
        """
        loop = asyncio.get_running_loop()
        with suppress(*GONE):
            async with asyncio.timeout(LAUNCH_SECONDS):
                with suppress(*GONE):
                    await loop.sock_sendall(self._control, GO)
                # A launcher may hold the other end for as long as it waits for the child.
                while not is_up(self._said):
                    more = await loop.sock_recv(self._control, 4096)
                    if not more:
                        break
                    self._said += more
        require_up(self._said)
        return self._said[len(EXECUTED) :]


def is_up(said: bytes) -> bool:
    """Whether the command executes, by the word of its first process."""
    return said.startswith(EXECUTED.encode())


def require_up(said: bytes) -> None:
    """Raises:
    LaunchFailed: it does not, for the reason that its first process gave.
    """
    if not is_up(said):
        why = said[1:].decode("utf-8", "replace")
        raise LaunchFailed(why or "its init ended before the command could be executed")


async def send_order(control: socket.socket, order: bytes) -> None:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(control, len(order).to_bytes(8, sys.byteorder) + order)


async def introduced(control: socket.socket, order: bytes) -> tuple[int, bytes]:
    """The order, if there is one, is sent; the child's pid, and what it said after that, if it
    failed early.

    Raises:
        NoNamespaces, LaunchFailed: there is no child.
        EOFError: nobody answered.
    """
    loop = asyncio.get_running_loop()
    said = b""
    with suppress(*GONE):
        if order:
            await send_order(control, order)
    with suppress(*GONE):
        while b"\n" not in said and (more := await loop.sock_recv(control, 4096)):
            said += more
    line, _, early = said.partition(b"\n")
    word, _, rest = line.decode("utf-8", "replace").partition(" ")
    if word == "unavailable":
        raise NoNamespaces(rest)
    if word == "error":
        raise LaunchFailed(rest)
    if word != "pid":
        raise EOFError
    return int(rest), early
