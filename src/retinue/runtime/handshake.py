"""The steward's side of the launch handshake; `control_protocol` describes the messages."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

from retinue.child.gateway_socket import DOOR, PROOF
from retinue.core.errors import LaunchFailed

ANSWER_SECONDS = 5.0  # for an adopted child to hand over its gateway socket
WRITE = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
ASK = b"?"


async def receive_socket(way: socket.socket) -> tuple[bytes, socket.socket | None]:
    """Return the next message, and the socket that came with it if there was one."""
    # asyncio has no call that receives descriptors.
    while True:
        try:
            said, came, _, _ = socket.recv_fds(way, 4096, 1)
        except BlockingIOError:
            await _wait_readable(way)
            continue
        return said, socket.socket(fileno=came[0]) if came else None


async def receive_into(said: bytearray, way: socket.socket) -> bool:
    """Append the next bytes to `said`; return False at end of file.

    `loop.sock_recv` loses bytes if its task is cancelled after they were read. Here they are
    read and appended in one step, so a cancelled call has read nothing.
    """
    while True:
        try:
            more = way.recv(4096)
        except BlockingIOError:
            await _wait_readable(way)
            continue
        said += more
        return bool(more)


async def _wait_readable(way: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(way, _wake, ready)
    try:
        await ready
    finally:
        loop.remove_reader(way)


async def ask_again(runtime_folder: Path) -> socket.socket | None:
    """Return the gateway socket of an adopted child; None if it has none."""
    try:
        folder = os.open(runtime_folder, os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    loop = asyncio.get_running_loop()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as way:
            way.setblocking(False)
            async with asyncio.timeout(ANSWER_SECONDS):
                # The child hands its socket only to a caller that can write its exit record.
                proof = os.open(PROOF, WRITE, dir_fd=folder)
                try:
                    # By descriptor: a socket's path may have only about 100 bytes.
                    await loop.sock_connect(way, f"/proc/self/fd/{folder}/{DOOR}")
                    socket.send_fds(way, [ASK], [proof])
                finally:
                    os.close(proof)
                return (await receive_socket(way))[1]
    except (OSError, TimeoutError):
        return None
    finally:
        os.close(folder)


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


LAUNCH_SECONDS = 30.0  # for each answer of a process that is being launched
GONE = (BrokenPipeError, ConnectionResetError)


class NoNamespaces(LaunchFailed):
    """The kernel refuses namespaces; the message says why."""


async def send_order(control: socket.socket, order: bytes) -> None:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(control, len(order).to_bytes(8, sys.byteorder) + order)


async def exchange_order(
    control: socket.socket, order: bytes, said: bytearray
) -> tuple[int, bytes]:
    """Send the order if there is one; return the child's pid, and its message if it failed early.

    Args:
        said: receives all that the other end sends. If this call fails or is cancelled, the pid
            of a child that must be reaped may be in it.

    Raises:
        NoNamespaces, LaunchFailed: there is no child.
        EOFError: the connection was closed without an answer.
    """
    # The order does not wait for the pid: that saves a round trip. If there is no child, the
    # send fails and the reason is read below.
    with suppress(*GONE):
        if order:
            await send_order(control, order)
    with suppress(*GONE):
        while b"\n" not in said and await receive_into(said, control):
            pass
    line, _, early = bytes(said).partition(b"\n")
    word, _, rest = line.decode("utf-8", "replace").partition(" ")
    if word == "unavailable":
        raise NoNamespaces(rest)
    if word == "error":
        raise LaunchFailed(rest)
    if word != "pid":
        raise EOFError
    return int(rest), early
