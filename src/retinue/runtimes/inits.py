"""First processes of attempts to come: cloning one takes longer than what it does for many."""

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

from retinue.child.order import Order, encode
from retinue.runtimes import procfs
from retinue.runtimes.gate import GONE, send_order

MOST = 32  # that wait
KEPT_S = 10.0  # each


class Init:
    """The first process of its namespaces, a child of ours; alone in them before its order."""

    def __init__(self, pid: int, control: socket.socket, namespaces: int, generation: int) -> None:
        """Raises:
        OSError: it cannot be held, and is gone.
        """
        self.control = control
        self.namespaces = namespaces
        self.generation = generation
        self.outdated = False  # it is not to be used again
        self.since = 0.0  # when it began to wait
        self._footing: tuple[Mapping[str, int], bool] | None = None  # after its last order
        self._ear: Callable[[bytes], None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # in which it is listened to
        try:
            self.identity, self.pidfd = procfs.hold(pid)
        except OSError:
            control.close()  # it sees that nobody is there, and goes
            os.waitpid(pid, 0)
            raise

    def suits(self, order: Order) -> bool:
        if self.namespaces != order.namespaces:
            return False
        return self._footing is None or (order.stays and self._footing == order.footing)

    def took(self, order: Order) -> None:
        self._footing = order.footing

    async def give(self, order: Order, timeout_s: float) -> bool:
        """Whether it has the order; else it is gone."""
        self.took(order)
        try:
            async with asyncio.timeout(timeout_s):
                await send_order(self.control, encode(order))
        except (OSError, TimeoutError):
            self.end()
            return False
        except BaseException:  # with half of it, it is nobody's
            self.end()
            raise
        return True

    async def send(self, word: bytes) -> None:
        with suppress(*GONE):
            await asyncio.get_running_loop().sock_sendall(self.control, word)

    def attend(self, ear: Callable[[bytes], None]) -> None:
        """The ear is told what it says from now on, and nothing when it has gone."""
        self._ear = ear
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            loop.add_reader(self.control, self._hear)
            self._loop = loop

    def ignore(self) -> None:
        self._ear = None

    def hang_up(self) -> None:
        """It is not listened to any more, and told nothing; whoever listened knows."""
        if self._loop is not None and self.control.fileno() >= 0:
            self._loop.remove_reader(self.control)
        self.control.close()
        ear, self._ear = self._ear, None
        if ear is not None:
            ear(b"")

    def _hear(self) -> None:
        said = b""
        with suppress(OSError):
            said = self.control.recv(4096)
        if not said:
            self.hang_up()
        elif self._ear is not None:
            self._ear(said)

    def is_there(self) -> bool:
        if self.control.fileno() < 0:
            return False
        try:
            return self.control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def leave(self, then: Callable[[], None]) -> None:
        """It goes, and is reaped then."""
        self.hang_up()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self.pidfd, self._left, then)

    def end(self) -> None:
        """It is gone and reaped."""
        self.hang_up()
        self._look_away()
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        self._reap()

    def _left(self, then: Callable[[], None]) -> None:
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


class Inits:
    """Those that wait for an order, and those that will once their attempt is over."""

    def __init__(self) -> None:
        self.generation = 0  # an older one is not used again
        self._waiting: list[Init] = []  # who waits longest comes first
        self._lent: WeakSet[Init] = WeakSet()
        self._leaving: set[Init] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # of the timer
        self._mounts = -1
        self._changes = select.poll()

    def watch_mounts(self) -> None:
        """Whatever is mounted from here on is seen by all that are used again.

        Raises:
            OSError: it cannot be watched.
        """
        if self._mounts < 0:
            self._mounts = os.open("/proc/self/mounts", os.O_RDONLY | os.O_CLOEXEC)
            self._changes.register(self._mounts, select.POLLPRI)

    def take(self, order: Order) -> Init | None:
        """One that waits for such an order, if there is any: the last that came."""
        if self._changes.poll(0):
            self.renew()  # what they see of this machine is out of date
        for init in [each for each in reversed(self._waiting) if each.suits(order)]:
            self._waiting.remove(init)
            if init.is_there():
                return init
            init.end()
        return None

    def waits(self, namespaces: int) -> bool:
        """Whether anybody does in such namespaces."""
        return any(init.namespaces == namespaces for init in self._waiting)

    def lend(self, init: Init) -> None:
        """It carries out an order, and will be back."""
        self._lent.add(init)

    def add(self, init: Init) -> None:
        """It waits for its next order, or its first."""
        self._lent.discard(init)
        init.ignore()
        if init.outdated or init.generation != self.generation:
            self.see_off(init)
            return
        loop = asyncio.get_running_loop()
        init.since = loop.time()
        self._waiting.append(init)
        if len(self._waiting) > MOST:
            self.see_off(self._waiting.pop(0))
        if self._timer is None or self._loop is not loop:
            self._loop, self._timer = loop, loop.call_later(KEPT_S, self._look)

    def see_off(self, init: Init) -> None:
        """It goes, and is reaped then; by `close`, where our loop ends before."""
        self._leaving.add(init)
        init.leave(partial(self._leaving.discard, init))

    def renew(self) -> None:
        """Whoever is there now, or on the way, is not used again."""
        self.generation += 1
        while self._waiting:
            self.see_off(self._waiting.pop())

    def close(self) -> None:
        """None is left but those with an order, which go when they have carried it out."""
        for gone in (self._waiting, self._leaving):
            while gone:
                gone.pop().end()
        for init in self._lent:
            init.hang_up()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._mounts >= 0:
            self._changes.unregister(self._mounts)
            os.close(self._mounts)
            self._mounts = -1

    def _look(self) -> None:
        """Who has waited long enough leaves."""
        loop = asyncio.get_running_loop()
        while self._waiting and self._waiting[0].since + KEPT_S <= loop.time():
            self.see_off(self._waiting.pop(0))
        self._timer = None
        if self._waiting:
            self._timer = loop.call_at(self._waiting[0].since + KEPT_S, self._look)
