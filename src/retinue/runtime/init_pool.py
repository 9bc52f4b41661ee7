"""Pool of idle init processes.

An init is the first process of its namespaces. To clone one takes longer than many commands run,
so inits are made ahead and reused.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from weakref import WeakSet

from retinue.child.launch_order import Order, encode
from retinue.runtime import procfs
from retinue.runtime.handshake import GONE, send_order

MOST = 32  # idle inits
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
        self.outdated = False  # must not be reused
        self.since = 0.0  # when it became idle, by the loop's clock
        self._footing: tuple[Mapping[str, int], bool] | None = None  # left by its last order
        self._ear: Callable[[bytes], None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # that has the reader of `control`
        try:
            self.identity, self.pidfd = procfs.hold(pid)
        except OSError:
            control.close()  # the init reads end of file, and exits
            os.waitpid(pid, 0)
            raise

    def can_serve(self, order: Order) -> bool:
        if self.namespaces != order.namespaces:
            return False
        # An init can lower its own resource limits but not raise them again. So a used one
        # serves only orders that leave it with the same limits.
        return self._footing is None or (order.stays and self._footing == order.footing)

    def mark_busy(self, order: Order) -> None:
        self._footing = order.footing

    async def give(self, order: Order, timeout_s: float) -> bool:
        """Send the order; return False if that failed and the init was ended."""
        self.mark_busy(order)
        try:
            async with asyncio.timeout(timeout_s):
                await send_order(self.control, encode(order))
        except (OSError, TimeoutError):
            self.end()
            return False
        except BaseException:  # cancelled: an init with half an order is of no use
            self.end()
            raise
        return True

    async def send(self, word: bytes) -> None:
        with suppress(*GONE):
            await asyncio.get_running_loop().sock_sendall(self.control, word)

    def listen(self, ear: Callable[[bytes], None]) -> None:
        """Call `ear` with each message from now on, and with no bytes once the init is gone."""
        self._ear = ear
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            loop.add_reader(self.control, self._on_message)
            self._loop = loop

    def stop_listening(self) -> None:
        self._ear = None

    def close(self) -> None:
        """Close the connection and tell the listener; an idle init exits then."""
        if self._loop is not None and self.control.fileno() >= 0:
            self._loop.remove_reader(self.control)
        self.control.close()
        ear = self._ear
        self._ear = None
        if ear is not None:
            ear(b"")

    def _on_message(self) -> None:
        said = b""
        with suppress(OSError):
            said = self.control.recv(4096)
        if not said:
            self.close()
        elif self._ear is not None:
            self._ear(said)

    def is_there(self) -> bool:
        # An idle init sends nothing, so a closed connection is all that can be read.
        if self.control.fileno() < 0:
            return False
        try:
            return self.control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def leave(self, then: Callable[[], None]) -> None:
        """Let the init exit; reap it then and call `then`."""
        self.close()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self.pidfd, self._on_exit, then)

    def end(self) -> None:
        """Kill and reap the init."""
        self.close()
        self._look_away()
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        self._reap()

    def _on_exit(self, then: Callable[[], None]) -> None:
        self._look_away()
        self._reap()
        then()

    def _look_away(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self.pidfd)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)
        os.close(self.pidfd)


class InitPool:
    """Idle inits, and those that will be idle once their attempt is over."""

    def __init__(self) -> None:
        self.generation = 0  # inits of an older generation are not reused
        self._waiting: list[Init] = []  # idle, longest first
        self._lent: WeakSet[Init] = WeakSet()  # with an order
        self._leaving: set[Init] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # that has the timer
        self._mounts = -1
        self._changes = select.poll()

    def watch_mounts(self) -> None:
        """Watch for changes of mounts, after which existing inits are not reused.

        Raises:
            OSError: the mounts cannot be watched.
        """
        if self._mounts < 0:
            self._mounts = os.open("/proc/self/mounts", os.O_RDONLY | os.O_CLOEXEC)
            self._changes.register(self._mounts, select.POLLPRI)

    def take(self, order: Order) -> Init | None:
        """Take an idle init that can serve this order, the most recent one; None if none can."""
        # The mounts that idle inits see are those of the time of their clone.
        if self._changes.poll(0):
            self.discard_all()
        for init in [each for each in reversed(self._waiting) if each.can_serve(order)]:
            self._waiting.remove(init)
            if init.is_there():
                return init
            init.end()
        return None

    def has_idle(self, namespaces: int) -> bool:
        """Return whether an init with these namespaces is idle."""
        return any(init.namespaces == namespaces for init in self._waiting)

    def mark_lent(self, init: Init) -> None:
        """Note that an init carries out an order and will be idle again."""
        self._lent.add(init)

    def add(self, init: Init) -> None:
        """Add an idle init; one that must not be reused is ended."""
        self._lent.discard(init)
        init.stop_listening()
        if init.outdated or init.generation != self.generation:
            self.see_off(init)
            return
        loop = asyncio.get_running_loop()
        init.since = loop.time()
        self._waiting.append(init)
        if len(self._waiting) > MOST:
            self.see_off(self._waiting.pop(0))
        if self._timer is None or self._loop is not loop:
            self._loop = loop
            self._timer = loop.call_later(KEPT_S, self._look)

    def see_off(self, init: Init) -> None:
        """Let an init exit and reap it then, or in `close` if the loop ends first."""
        self._leaving.add(init)
        init.leave(partial(self._leaving.discard, init))

    def discard_all(self) -> None:
        """End all idle inits; those with an order, or being cloned, are not reused."""
        self.generation += 1
        while self._waiting:
            self.see_off(self._waiting.pop())

    def close(self) -> None:
        """End all inits but those with an order, which exit when it is carried out."""
        for gone in (self._waiting, self._leaving):
            while gone:
                gone.pop().end()
        for init in self._lent:
            init.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._mounts >= 0:
            self._changes.unregister(self._mounts)
            os.close(self._mounts)
            self._mounts = -1

    def _look(self) -> None:
        """End inits that were idle for KEPT_S, and set the timer for the next."""
        loop = asyncio.get_running_loop()
        while self._waiting and self._waiting[0].since + KEPT_S <= loop.time():
            self.see_off(self._waiting.pop(0))
        self._timer = None
        if self._waiting:
            self._timer = loop.call_at(self._waiting[0].since + KEPT_S, self._look)
