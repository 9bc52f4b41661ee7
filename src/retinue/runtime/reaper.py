"""Reaping of processes that have ended or are about to, without blocking the event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import suppress

ABANDON_S = 5.0  # how long `close` waits for the fork server's answer to an abandoned launch


class Reaper:
    """Exiting children of this process. Each is reaped when it is gone, or by `close`.

    Callbacks of the event loop do the work and not tasks: a loop that ends cancels its tasks,
    and a process must not be lost by that.
    """

    def __init__(self) -> None:
        self.closed = False
        self._exiting: dict[int, asyncio.AbstractEventLoop] = {}  # by pidfd
        self._abandoned: dict[socket.socket, tuple[bytearray, asyncio.AbstractEventLoop]] = {}

    def reap_later(self, pidfd: int) -> None:
        """Reap a process that is exiting, and close its pidfd."""
        loop = asyncio.get_running_loop()
        self._exiting[pidfd] = loop
        loop.add_reader(pidfd, self._reap, pidfd)

    def abandon_launch(self, control: socket.socket, said: bytearray) -> None:
        """Reap the child of an abandoned launch, if the fork server still makes one.

        Such a child reads end of file instead of its order, and exits.

        Args:
            said: what was received on the socket so far.
        """
        with suppress(OSError):
            control.shutdown(socket.SHUT_WR)
        loop = asyncio.get_running_loop()
        self._abandoned[control] = said, loop
        loop.add_reader(control, self._receive, control)

    def reap_abandoned(self) -> None:
        """Reap the children of abandoned launches now; the fork server must still run.

        A server that is killed between the clone and its answer leaves a child whose pid is not
        known here.
        """
        while self._abandoned:
            control = next(iter(self._abandoned))
            reap_abandoned(control, self._forget(control))

    def close(self) -> None:
        """Kill and reap all that are left; blocks until they are gone."""
        self.closed = True
        self.reap_abandoned()
        for pidfd in [*self._exiting]:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            self._reap(pidfd)

    def _reap(self, pidfd: int) -> None:
        stop_reading(self._exiting.pop(pidfd), pidfd)
        reap(pidfd)

    def _receive(self, control: socket.socket) -> None:
        more = b""
        with suppress(OSError):
            more = control.recv(4096)
        self._abandoned[control][0].extend(more)
        if more:
            return
        pid = read_child_pid(self._forget(control))
        control.close()
        # Without a free descriptor the zombie stays until this process exits.
        with suppress(OSError):
            if pid:
                self.reap_later(os.pidfd_open(pid))

    def _forget(self, control: socket.socket) -> bytearray:
        said, loop = self._abandoned.pop(control)
        stop_reading(loop, control.fileno())
        return said


def reap_abandoned(control: socket.socket, said: bytearray) -> None:
    """Reap the child of an abandoned launch, blocking until the fork server has answered."""
    with control, suppress(OSError):
        control.settimeout(ABANDON_S)
        control.shutdown(socket.SHUT_WR)
        while more := control.recv(4096):
            said += more
    if pid := read_child_pid(said):
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def read_child_pid(said: bytes | bytearray) -> int:
    """Return the pid in the first line that a fork server sent; 0 if it made no child."""
    word, _, rest = bytes(said).partition(b"\n")[0].partition(b" ")
    return int(rest) if word == b"pid" and rest.isdigit() else 0


def reap(pidfd: int) -> os.waitid_result | None:
    """Reap a child, blocking until it exits, and close its pidfd; None if it is not ours."""
    try:
        return os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
    except ChildProcessError:
        return None
    finally:
        os.close(pidfd)


def stop_reading(loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
    """Remove a reader from the loop that has it, which may be closed."""
    if not loop.is_closed():
        loop.remove_reader(descriptor)
