"""Pool of inits that were made ahead.

An init is the first process of a child's namespaces. To clone one takes longer than many commands
run, so one is made before it is needed. An init serves a single attempt: only inits that have had
no order are in the pool.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
from contextlib import suppress

from retinue.child.control_protocol import Order, encode_order
from retinue.runtime import procfs
from retinue.runtime.handshake import send_order
from retinue.runtime.reaper import Reaper, reap

KEPT_S = 10.0  # how long an init stays idle before it is ended


class Init:
    """One init: a child of the steward, alone in its namespaces until it gets an order."""

    def __init__(self, pid: int, control: socket.socket, namespaces: int, generation: int) -> None:
        """Raises:
        OSError: no pidfd could be opened; the process was ended.
        """
        self.control = control
        self.namespaces = namespaces
        self.generation = generation
        self.since = 0.0  # when it became idle, by the loop's clock
        try:
            self.identity, self.pidfd = procfs.hold(pid)
        except OSError:
            control.close()  # the init reads end of file, and exits
            os.waitpid(pid, 0)
            raise

    async def give(self, order: Order, timeout_s: float) -> bool:
        """Send the order; return False if that failed and the init was ended."""
        try:
            async with asyncio.timeout(timeout_s):
                await send_order(self.control, encode_order(order))
        except (OSError, TimeoutError):
            self.end()
            return False
        except BaseException:  # cancelled: an init with half an order is of no use
            self.end()
            raise
        return True

    def is_there(self) -> bool:
        # An idle init sends nothing, so a closed connection is all that can be read.
        try:
            return self.control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def end(self) -> None:
        """Kill and reap the init."""
        self.control.close()
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        reap(self.pidfd)


class InitPool:
    """Idle inits of one fork server; the fork server keeps one for each kind of namespaces."""

    def __init__(self, reaper: Reaper) -> None:
        self.generation = 0  # inits of an older generation are not used
        self._reaper = reaper
        self._idle: list[Init] = []  # longest first
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # that has the timer
        self._mounts = -1
        self._changes = select.poll()

    def watch_mounts(self) -> None:
        """Watch for changes of mounts, after which existing inits are not used.

        Raises:
            OSError: the mounts cannot be watched.
        """
        if self._mounts < 0:
            self._mounts = os.open("/proc/self/mounts", os.O_RDONLY | os.O_CLOEXEC)
            self._changes.register(self._mounts, select.POLLPRI)

    def take(self, namespaces: int) -> Init | None:
        """Take an idle init with these namespaces; None if there is none."""
        # The mounts that idle inits see are those of the time of their clone.
        if self._changes.poll(0):
            self.discard_all()
        for init in [each for each in self._idle if each.namespaces == namespaces]:
            self._idle.remove(init)
            if init.is_there():
                return init
            init.end()
        return None

    def has_idle(self, namespaces: int) -> bool:
        return any(init.namespaces == namespaces for init in self._idle)

    def add(self, init: Init) -> None:
        """Add a new init; one whose mounts are outdated is ended."""
        if init.generation != self.generation:
            self._let_go(init)
            return
        loop = asyncio.get_running_loop()
        init.since = loop.time()
        self._idle.append(init)
        if self._timer is None or self._loop is not loop:
            self._loop = loop
            self._timer = loop.call_later(KEPT_S, self._end_expired)

    def discard_all(self) -> None:
        """End all idle inits; those that are being cloned will not be added."""
        self.generation += 1
        while self._idle:
            self._let_go(self._idle.pop())

    def close(self) -> None:
        while self._idle:
            self._idle.pop().end()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._mounts >= 0:
            self._changes.unregister(self._mounts)
            os.close(self._mounts)
            self._mounts = -1

    def _let_go(self, init: Init) -> None:
        """Let an idle init exit: it reads end of file."""
        init.control.close()
        self._reaper.reap_later(init.pidfd)

    def _end_expired(self) -> None:
        """End inits that were idle for KEPT_S, and set the timer for the next."""
        loop = asyncio.get_running_loop()
        while self._idle and self._idle[0].since + KEPT_S <= loop.time():
            self._let_go(self._idle.pop(0))
        self._timer = None
        if self._idle:
            self._timer = loop.call_at(self._idle[0].since + KEPT_S, self._end_expired)
