"""The steward's end of the control socket of a child that waits to be released."""

from __future__ import annotations

import asyncio
import socket
import sys
from contextlib import ExitStack, suppress

from retinue.child.control import FREE, GO
from retinue.child.listening import HANDED, LISTEN
from retinue.domain.errors import LaunchFailed
from retinue.runtimes.listeners import handed

GONE = (BrokenPipeError, ConnectionResetError)


class NoNamespaces(LaunchFailed):
    """The kernel does not give us the namespaces; the message says why."""


class Gate:
    def __init__(
        self, control: socket.socket, early: bytes, timeout_s: float, *, stays: bool = False
    ) -> None:
        self.control = control
        self.stays = stays  # behind it is one who will say when it is free again
        self._said = early
        self._timeout_s = timeout_s

    def close(self) -> None:
        self.control.close()

    async def listener(self) -> socket.socket | None:
        """The socket that the child opened for its gateway; None when it could not.

        Raises:
            TimeoutError: it said nothing.
        """
        loop = asyncio.get_running_loop()
        with suppress(*GONE):
            async with asyncio.timeout(self._timeout_s):
                await loop.sock_sendall(self.control, LISTEN)
                said, found = await handed(self.control)
                self._said += said.removeprefix(HANDED)
                return found
        return None

    async def open(self) -> None:
        """The command is executing; the control socket is closed, but for one that stays.

        Raises:
            LaunchFailed: it is not, for the reason its first process gave.
            TimeoutError: it said nothing.
        """
        loop = asyncio.get_running_loop()
        with ExitStack() as unless_it_stays:
            unless_it_stays.callback(self.control.close)
            with suppress(*GONE):
                async with asyncio.timeout(self._timeout_s):
                    with suppress(*GONE):
                        await loop.sock_sendall(self.control, GO)
                    # A launcher may hold the other end for as long as it waits for the child.
                    while not self._said.startswith(b"+"):
                        # Not more than +, after which it may be free already.
                        more = await loop.sock_recv(self.control, 4096 if self._said else 1)
                        if not more:
                            break
                        self._said += more
            if self.stays and self._said.startswith(b"+"):
                unless_it_stays.pop_all()
        if not self._said.startswith(b"+"):
            why = self._said[1:].decode("utf-8", "replace")
            raise LaunchFailed(why or "its init ended before the command could be executed")

    def is_free(self) -> bool:
        """Who stays has said that it is free; else it is going, and the control socket closed."""
        with suppress(*GONE):
            if self.control.recv(1) == FREE.encode():
                return True
        self.control.close()
        return False


async def send_order(control: socket.socket, order: bytes) -> None:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(control, len(order).to_bytes(8, sys.byteorder) + order)


async def introduced(control: socket.socket) -> tuple[int, bytes]:
    """The pid of a child, and what it said after that, if it failed early.

    Raises:
        NoNamespaces, LaunchFailed: there is no child.
        EOFError: nobody answered.
    """
    loop = asyncio.get_running_loop()
    said = b""
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
