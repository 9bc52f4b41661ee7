"""The steward's end of the fork server: kept alive, asked for children."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retinue.child.forkserver import CHANNEL, SIZE
from retinue.child.order import Order, encode
from retinue.domain.errors import LaunchFailed
from retinue.runtimes.abandoned import abandon, abandoned, reap, reaped
from retinue.runtimes.gate import GONE, introduced
from retinue.runtimes.inits import Init, Inits

# The interpreter itself: a shim that chooses a version would cost ten times its start.
INTERPRETER = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
PACKAGE = Path(__file__).parent.parent
ABOVE_STANDARD = 10  # where a descriptor cannot collide with those that the server is given
# What modules want done in every clone (random, threading, logging), a server of one thread that
# holds no lock need not do; it would have each clone copy half a megabyte. Only `random` would be
# the same in all of them: who runs Python of ours makes it anew.
FIRST = """import os, sys
os.register_at_fork = lambda **_: None
sys.path[:0] = sys.argv[1].split(':')
"""


class Lost(Exception):
    """A fork server that was asked has ended; the message says what it did."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """What an interpreter runs to be a fork server, or one child behind a launcher."""

    module: str
    folders: tuple[str, ...]  # of the package, whose code its children run
    libraries: bool = False  # it needs what is installed beside us

    def argv(self, function: str) -> list[str]:
        paths = [str(PACKAGE.parent), *(_installed() if self.libraries else [])]
        code = f"{FIRST}from {self.module} import {function}; {function}()"
        # What site would start, each child would have to make anew.
        return [INTERPRETER, "-I", "-S", "-c", code, ":".join(paths), "retinue-forkserver"]

    def stamp(self) -> int:
        """Changes when the code that children run has changed."""
        newest = 0
        with suppress(FileNotFoundError):  # which is a change, too
            for folder in self.folders:
                with os.scandir(PACKAGE / folder) as files:
                    times = [each.stat().st_mtime_ns for each in files if each.name.endswith(".py")]
                newest = max([newest, *times])
        return newest


COMMANDS = Program(module="retinue.child.forkserver", folders=("child",))
TEAMS = Program(
    module="retinue.executors.forkserver",
    folders=(
        *("child", "executors", "backends", "delegating", "steward", "domain"),
        *("wire", "wire/forms", "wire/vendors"),
    ),
    libraries=True,
)


class ForkServer:
    """Started when it is first needed, and again when it died or did not answer in time.

    Whatever becomes of the files, its children run the code that whoever asks for them has
    loaded: the two have much to say to each other.
    """

    def __init__(self, timeout_s: float, program: Program) -> None:
        self._timeout_s = timeout_s
        self._program = program
        self._channel: socket.socket | None = None
        self._pid = 0
        self._stamp = program.stamp()
        self._starting = asyncio.Lock()
        self._expected: asyncio.Task[None] | None = None
        self._ahead: asyncio.Task[None] | None = None
        self._ends: set[asyncio.Task[None]] = set()  # of processes that are still to be reaped
        self._killed: set[int] = set()  # servers, that are not reaped yet
        self._left: dict[socket.socket, bytearray] = {}  # launches that came to nothing
        self.inits = Inits()

    async def warm(self) -> None:
        """The server runs, so that the first child need not wait for it."""
        async with self._starting:
            await self._current()

    def expect(self) -> None:
        """The server is on its way; whoever needs it waits for it, and is told of its failure."""
        if self._channel is None and (self._expected is None or self._expected.done()):
            self._expected = asyncio.create_task(self.warm())
            self._expected.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def start(self, order: Order) -> tuple[Init, bytes]:
        """Who has the order and waits at its gate, and what it said if it failed early.

        Raises:
            LaunchFailed, OSError: there is none.
        """
        init = self.inits.take(order)
        if init is not None and await init.give(order, self._timeout_s):
            return init, b""
        with suppress(Lost):
            return await self._ask(order.namespaces, order)
        try:
            return await self._ask(order.namespaces, order)  # once more, of a new one
        except Lost as why:
            raise LaunchFailed(f"the fork server {why}") from None

    def close(self) -> None:
        """No server is left; its children are not its own and stay."""
        if self._expected is not None:
            self._expected.cancel()
        if self._ahead is not None:
            self._ahead.cancel()
        for end in self._ends:
            if not end.get_loop().is_closed():  # else nobody is left who could see to it
                end.cancel()
        self.inits.close()
        self._kill()
        while self._killed:
            reap(self._killed.pop())
        while self._left:
            abandon(*self._left.popitem())

    def _kill(self) -> int:
        """The process that ends, if there was any, also if it is stopped; it is to be reaped."""
        self.inits.renew()
        if self._channel is None:
            return 0
        self._channel.close()
        self._channel = None
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self._killed.add(self._pid)
        return self._pid

    def _end(self) -> None:
        """No server is left; it is reaped by `close`, where our loop ends before."""
        if not (pid := self._kill()):
            return

        async def see_off() -> None:
            await reaped(pid)
            self._killed.discard(pid)

        self._see_to(see_off())

    def _abandon(self, control: socket.socket) -> None:
        """Whoever came of it is seen off; likewise."""
        said = self._left[control] = bytearray()

        async def see_off() -> None:
            await abandoned(control, said)
            del self._left[control]
            control.close()

        self._see_to(see_off())

    def _see_to(self, end: Coroutine[Any, Any, None]) -> None:
        """It comes when it comes: nobody waits for it."""
        task = asyncio.create_task(end)
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)

    def make_ahead(self, namespaces: int) -> None:
        """Whoever is to be in such namespaces next finds its init waiting."""
        busy = self._ahead is not None and not self._ahead.done()
        if not busy and self._channel is not None and not self.inits.waits(namespaces):
            self._ahead = asyncio.create_task(self._make_ahead(namespaces))

    async def _make_ahead(self, namespaces: int) -> None:
        with suppress(LaunchFailed, Lost, OSError):  # told to whoever needs one
            init, _ = await self._ask(namespaces)
            self.inits.add(init)

    async def _ask(self, namespaces: int, order: Order | None = None) -> tuple[Init, bytes]:
        """Raises:
        Lost: it came to nothing, and so did the server.
        """
        async with self._starting:
            channel = await self._current()
        generation = self.inits.generation
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            with theirs, self._lost_with(channel):
                request = namespaces.to_bytes(SIZE, sys.byteorder)
                socket.send_fds(channel, [request], [theirs.fileno()])
                theirs.close()
                async with asyncio.timeout(self._timeout_s):
                    pid, early = await introduced(ours, encode(order) if order else b"")
        except BaseException:
            self._abandon(ours)
            raise
        init = Init(pid, ours, namespaces, generation)
        if order is not None:
            init.took(order)
        return init, early

    @contextmanager
    def _lost_with(self, channel: socket.socket) -> Iterator[None]:
        """Whoever hears nothing by a channel ends the server behind it, and not its successor."""
        try:
            yield
        except (EOFError, TimeoutError, *GONE) as fault:
            if self._channel is channel:
                self._end()
            late = isinstance(fault, TimeoutError)
            raise Lost("did not answer in time" if late else "does not stay alive") from None

    def require_same(self) -> None:
        """Raises:
        LaunchFailed: who is started from the files now is not of our version.
        """
        if self._program.stamp() != self._stamp:
            raise LaunchFailed(
                f"retinue was changed on disk after process {os.getpid()} loaded it: "
                "'retinue steward stop' ends that, and the next command starts another"
            )

    async def _current(self) -> socket.socket:
        loop = asyncio.get_running_loop()
        if self._channel is None:
            self.require_same()
            self.inits.watch_mounts()
            self._channel, self._pid = _spawn(self._program)
            with self._lost_with(self._channel):
                async with asyncio.timeout(self._timeout_s):
                    if not await loop.sock_recv(self._channel, 1):
                        raise EOFError
        return self._channel


def _installed() -> list[str]:
    """Where libraries are that are not the interpreter's own."""
    return [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]


def _spawn(program: Program) -> tuple[socket.socket, int]:
    ours, theirs = socket.socketpair()
    with theirs:
        passed = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, ABOVE_STANDARD)
    # Of our own environment nothing goes along: a command could read it from its init's.
    environment = {k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"}
    try:
        pid = os.posix_spawn(
            INTERPRETER,
            program.argv("main"),
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, passed, CHANNEL),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=signal.valid_signals(),
        )
    except OSError:
        ours.close()
        raise
    finally:
        os.close(passed)
    ours.setblocking(False)
    return ours, pid
