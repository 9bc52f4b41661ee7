"""Launch handshake: send a child its order and receive its pid, also behind a launch prefix.

`child.control_protocol` describes the messages. The gateway socket of an adopted child is asked
for here, too.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from retinue.child.control_protocol import Order, encode_order
from retinue.child.gateway_socket import DOOR, PROOF
from retinue.core.errors import LaunchFailed
from retinue.ports import ProcessIdentity
from retinue.runtime import procfs

SETTING = "subagent_host_launch_prefix"


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """The launcher process in front of a child."""

    pid: int

    def end(self) -> None:
        """Kill and reap the launcher; its child has ended before, or ends by itself."""
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


class Started(NamedTuple):
    """A child behind a launcher, which has its order and waits for GO."""

    identity: ProcessIdentity  # of the process to watch
    pidfd: int
    control: socket.socket
    early: bytes  # what it sent on that socket already
    launcher: Launcher | None  # None: it is the process to watch


async def start_fresh(argv: list[str], order: Order) -> Started:
    """Start a child behind its launcher.

    Raises:
        NamespacesRefused, LaunchFailed, OSError: there is no child; the launcher was ended.
    """
    ours, launcher = _spawn(argv)
    with ExitStack() as on_failure:
        on_failure.callback(launcher.end)
        on_failure.callback(ours.close)
        try:
            async with asyncio.timeout(LAUNCH_SECONDS):
                said, early = await exchange_order(ours, encode_order(order), bytearray())
        except NamespacesRefused as why:
            raise NamespacesRefused(f"{why.message}, behind {SETTING}") from None
        except (EOFError, TimeoutError):
            raise LaunchFailed(
                f"the launcher {argv[0]!a} started no child; see {SETTING}"
            ) from None
        identity, pidfd = procfs.hold(_find_visible_pid(said, launcher.pid))
        on_failure.pop_all()
    # A process is reaped by its watcher. By the time of `Launcher.end`, its pid may be reused.
    in_front = None if identity.pid == launcher.pid else launcher
    return Started(identity, pidfd, ours, early, in_front)


def _spawn(argv: list[str]) -> tuple[socket.socket, Launcher]:
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            pid = os.posix_spawnp(
                argv[0],
                argv,
                # No other variable: the steward's environment may hold keys.
                {"PATH": os.environ.get("PATH", os.defpath)},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), 0),
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), 1),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
                setsid=True,
                setsigmask=(),
                setsigdef=signal.valid_signals(),
            )
        except OSError as fault:
            ours.close()
            raise LaunchFailed(
                f"the launcher {argv[0]!a} could not be started: {fault.strerror}; see {SETTING}"
            ) from fault
    ours.setblocking(False)
    return ours, Launcher(pid=pid)


def _find_visible_pid(said: int, launcher: int) -> int:
    """Return the pid that our program reported, if it is below the launcher; else the launcher's.

    Behind a PID namespace the reported number can be that of an unrelated process here.
    """
    below = {each.pid for each in procfs.list_process_tree(launcher)}
    return said if said in below else launcher


ANSWER_SECONDS = 5.0  # for an adopted child to hand over its gateway socket
WRITE = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
ASK = b"?"


async def receive_socket(connection: socket.socket) -> tuple[bytes, socket.socket | None]:
    """Return the next message, and the socket that came with it if there was one."""
    # asyncio has no call that receives descriptors.
    while True:
        try:
            said, came, _, _ = socket.recv_fds(connection, 4096, 1)
        except BlockingIOError:
            await _wait_readable(connection)
            continue
        # A fork server or launcher that is started later must not hold it. Not by the flag
        # MSG_CMSG_CLOEXEC, which `recv_fds` of Python 3.11 ignores.
        for descriptor in came:
            os.set_inheritable(descriptor, False)
        return said, socket.socket(fileno=came[0]) if came else None


async def receive_into(said: bytearray, connection: socket.socket) -> bool:
    """Append the next bytes to `said`; return False at end of file.

    `loop.sock_recv` loses bytes if its task is cancelled after they were read. Here they are
    read and appended in one step, so a cancelled call has read nothing.
    """
    while True:
        try:
            more = connection.recv(4096)
        except BlockingIOError:
            await _wait_readable(connection)
            continue
        said += more
        return bool(more)


async def _wait_readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(connection, _wake, ready)
    try:
        await ready
    finally:
        loop.remove_reader(connection)


async def fetch_adopted_socket(runtime_folder: Path) -> socket.socket | None:
    """Return the gateway socket of an adopted child; None if it has none."""
    try:
        folder = os.open(runtime_folder, os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    loop = asyncio.get_running_loop()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.setblocking(False)
            async with asyncio.timeout(ANSWER_SECONDS):
                # The child hands its socket only to a caller that can write its exit record.
                proof = os.open(PROOF, WRITE, dir_fd=folder)
                try:
                    # By descriptor: a socket's path may have only about 100 bytes.
                    await loop.sock_connect(connection, f"/proc/self/fd/{folder}/{DOOR}")
                    socket.send_fds(connection, [ASK], [proof])
                finally:
                    os.close(proof)
                return (await receive_socket(connection))[1]
    except (OSError, TimeoutError):
        return None
    finally:
        os.close(folder)


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


LAUNCH_SECONDS = 30.0  # for each answer of a process that is being launched
GONE = (BrokenPipeError, ConnectionResetError)


class NamespacesRefused(LaunchFailed):
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
        NamespacesRefused, LaunchFailed: there is no child.
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
        raise NamespacesRefused(rest)
    if word == "error":
        raise LaunchFailed(rest)
    if word != "pid":
        raise EOFError
    return int(rest), early
