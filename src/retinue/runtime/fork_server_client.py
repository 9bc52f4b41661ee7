"""Client of the fork servers: starts them, restarts them and requests children."""

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

from retinue.child.fork_server import CHANNEL, SIZE
from retinue.child.launch_order import Order, encode
from retinue.core.errors import LaunchFailed
from retinue.processes import wait_exit
from retinue.runtime.handshake import GONE, exchange_order, receive_into
from retinue.runtime.init_pool import Init, InitPool

ABANDON_S = 5.0  # how long `close` waits for a child of an abandoned launch


async def reap_failed_launch(control: socket.socket, said: bytearray) -> None:
    """Reap the child of an abandoned launch, if the server still makes one.

    Such a child reads end of file instead of its order, and exits.
    """
    with suppress(OSError):
        control.shutdown(socket.SHUT_WR)
        while await receive_into(said, control):
            pass
    if pid := _read_child_pid(said):
        await wait_reaped(pid)


def reap_failed_launch_blocking(control: socket.socket, said: bytearray) -> None:
    """Do the same without an event loop, within ABANDON_S."""
    with control, suppress(OSError):
        control.settimeout(ABANDON_S)
        control.shutdown(socket.SHUT_WR)
        while more := control.recv(4096):
            said += more
    if pid := _read_child_pid(said):
        reap(pid)


def _read_child_pid(said: bytearray) -> int:
    """Return the pid that a fork server reported; 0 if it made no child."""
    word, _, rest = bytes(said).partition(b"\n")[0].partition(b" ")
    return int(rest) if word == b"pid" and rest.isdigit() else 0


async def wait_reaped(pid: int) -> None:
    """Wait until a child of this process exits, and reap it."""
    try:
        await wait_exit(pid)
    except OSError:
        return  # no descriptor is free; the zombie goes when this process exits
    reap(pid)


def reap(pid: int) -> None:
    """Reap a child, blocking until it exits."""
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


# The interpreter itself: a shim that chooses a version would cost ten times its start.
INTERPRETER = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
PACKAGE = Path(__file__).parent.parent
ABOVE_STANDARD = 10  # lowest descriptor to pass on; the ones below are set up in the server
# Modules such as random, threading and logging register fork handlers. A server with one thread
# and no locks does not need them, and they make each clone copy half a megabyte. Only `random`
# would repeat itself in each clone: teams, which run Python, seed it again.
FIRST = """import os, sys
os.register_at_fork = lambda **_: None
sys.path[:0] = sys.argv[1].split(':')
"""


class Lost(Exception):
    """A fork server failed while it handled a request; the message says how."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """Python program of a fork server, or of a single child behind a launcher."""

    module: str
    folders: tuple[str, ...]  # of the package, with the code that its children run
    libraries: bool = False  # needs third-party libraries

    def build_argv(self, function: str) -> list[str]:
        paths = [str(PACKAGE.parent), *(_list_library_folders() if self.libraries else [])]
        code = f"{FIRST}from {self.module} import {function}; {function}()"
        # -S: what `site` imports would be copied into each child.
        return [INTERPRETER, "-I", "-S", "-c", code, ":".join(paths), "retinue-forkserver"]

    def compute_stamp(self) -> int:
        """Return a number that changes when the code of the children changes on disk."""
        newest = 0
        with suppress(FileNotFoundError):  # a removed folder counts as a change
            for folder in self.folders:
                with os.scandir(PACKAGE / folder) as files:
                    times = [each.stat().st_mtime_ns for each in files if each.name.endswith(".py")]
                newest = max([newest, *times])
        return newest


COMMANDS = Program(module="retinue.child.fork_server", folders=("child",))
TEAMS = Program(
    module="retinue.team.team_fork_server",
    folders=(
        *("child", "team", "team/models", "team/tools", "delegation", "client"),
        *("core", "formats", "formats/schemas", "gateway/vendors"),
    ),
    libraries=True,
)


class ForkServer:
    """A fork server, started at first use and again after it died or did not answer in time.

    Its children run the same code as the steward, because both ends speak one protocol. A server
    is not started again after that code has changed on disk.
    """

    def __init__(self, timeout_s: float, program: Program) -> None:
        self._timeout_s = timeout_s
        self._program = program
        self._channel: socket.socket | None = None
        self._pid = 0
        self._stamp = program.compute_stamp()
        self._starting = asyncio.Lock()
        self._expected: asyncio.Task[None] | None = None
        self._ahead: asyncio.Task[None] | None = None
        self._ends: set[asyncio.Task[None]] = set()  # tasks that reap processes
        self._killed: set[int] = set()  # pids of killed servers that are not reaped yet
        self._left: dict[socket.socket, bytearray] = {}  # abandoned launches
        self.inits = InitPool()

    async def warm(self) -> None:
        """Start the server, so that the first child does not wait for it."""
        # Locked: two tasks would start two servers.
        async with self._starting:
            await self._get_channel()

    def expect(self) -> None:
        """Start the server in the background; a failure shows at the next `start`."""
        if self._channel is None and (self._expected is None or self._expected.done()):
            self._expected = asyncio.create_task(self.warm())
            # Retrieves the exception, which asyncio would log otherwise.
            self._expected.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def start(self, order: Order) -> tuple[Init, bytes]:
        """Return an init that has the order and waits for GO, and its message if it failed early.

        Raises:
            LaunchFailed, OSError: there is no child.
        """
        # An idle init is fastest. It may exit meanwhile: then a new one is cloned.
        init = self.inits.take(order)
        if init is not None and await init.give(order, self._timeout_s):
            return init, b""
        # A lost server is replaced by the second request; its order was not carried out.
        with suppress(Lost):
            return await self._ask(order.namespaces, order)
        try:
            return await self._ask(order.namespaces, order)
        except Lost as why:
            raise LaunchFailed(f"the fork server {why}") from None

    def close(self) -> None:
        """End the server and idle inits; running children go on, as they are not its children."""
        if self._expected is not None:
            self._expected.cancel()
        if self._ahead is not None:
            self._ahead.cancel()
        for end in self._ends:
            if not end.get_loop().is_closed():
                end.cancel()
        self.inits.close()
        self._kill()
        while self._killed:
            reap(self._killed.pop())
        while self._left:
            reap_failed_launch_blocking(*self._left.popitem())

    def _kill(self) -> int:
        """Kill the server, which is then to be reaped; return its pid, or 0 if none ran."""
        self.inits.discard_all()
        if self._channel is None:
            return 0
        self._channel.close()
        self._channel = None
        # SIGKILL, because a server that is stopped would not see that its channel is closed.
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self._killed.add(self._pid)
        return self._pid

    def _end(self) -> None:
        """Kill the server and reap it in the background, or in `close` if the loop ends first."""
        if not (pid := self._kill()):
            return

        async def see_off() -> None:
            await wait_reaped(pid)
            self._killed.discard(pid)

        self._see_to(see_off())

    def _reap_child(self, control: socket.socket, said: bytearray) -> None:
        """Reap the child of an abandoned launch, in the background or in `close`."""
        self._left[control] = said

        async def see_off() -> None:
            await reap_failed_launch(control, said)
            del self._left[control]
            control.close()

        self._see_to(see_off())

    def _see_to(self, end: Coroutine[Any, Any, None]) -> None:
        """Run a clean-up task in the background; the set keeps a reference to it."""
        task = asyncio.create_task(end)
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)

    def make_ahead(self, namespaces: int) -> None:
        """Clone an idle init in the background, for the next order with these namespaces."""
        busy = self._ahead is not None and not self._ahead.done()
        if not busy and self._channel is not None and not self.inits.has_idle(namespaces):
            self._ahead = asyncio.create_task(self._make_ahead(namespaces))

    async def _make_ahead(self, namespaces: int) -> None:
        with suppress(LaunchFailed, Lost, OSError):  # the next launch meets and reports it
            init, _ = await self._ask(namespaces)
            self.inits.add(init)

    async def _ask(self, namespaces: int, order: Order | None = None) -> tuple[Init, bytes]:
        """Have the server clone an init, and send it the order if there is one.

        Raises:
            Lost: there is no child, and the server was ended.
        """
        async with self._starting:
            channel = await self._get_channel()
        # Read before the clone: mounts that change meanwhile make the init outdated.
        generation = self.inits.generation
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        said = bytearray()
        try:
            with theirs, self._close_channel(channel):
                request = namespaces.to_bytes(SIZE, sys.byteorder)
                socket.send_fds(channel, [request], [theirs.fileno()])
                # Our copy must go, or the death of the child would not read as end of file.
                theirs.close()
                async with asyncio.timeout(self._timeout_s):
                    pid, early = await exchange_order(ours, encode(order) if order else b"", said)
        except BaseException:  # cancellation included: the server may still make the child
            self._reap_child(ours, said)
            raise
        init = Init(pid, ours, namespaces, generation)
        if order is not None:
            init.mark_busy(order)
        return init, early

    @contextmanager
    def _close_channel(self, channel: socket.socket) -> Iterator[None]:
        """End the server if it does not answer on this channel.

        Raises:
            Lost: in place of the end of file, the timeout or the broken connection.
        """
        try:
            yield
        except (EOFError, TimeoutError, *GONE) as fault:
            # Another task may have replaced the server already: leave its successor alone.
            if self._channel is channel:
                self._end()
            late = isinstance(fault, TimeoutError)
            raise Lost("did not answer in time" if late else "does not stay alive") from None

    def require_same(self) -> None:
        """Raises:
        LaunchFailed: the code on disk is no longer the code that the steward has loaded.
        """
        if self._program.compute_stamp() != self._stamp:
            raise LaunchFailed(
                f"retinue was changed on disk after process {os.getpid()} loaded it: "
                "run 'retinue steward stop'; the next command starts a new steward"
            )

    async def _get_channel(self) -> socket.socket:
        loop = asyncio.get_running_loop()
        if self._channel is None:
            self.require_same()
            # Before the server starts, so that no mount is missed that its clones do not see.
            self.inits.watch_mounts()
            self._channel, self._pid = _spawn(self._program)
            with self._close_channel(self._channel):
                async with asyncio.timeout(self._timeout_s):
                    if not await loop.sock_recv(self._channel, 1):
                        raise EOFError
        return self._channel


def _list_library_folders() -> list[str]:
    """Return the folders of third-party libraries."""
    return [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]


def _spawn(program: Program) -> tuple[socket.socket, int]:
    ours, theirs = socket.socketpair()
    with theirs:
        passed = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, ABOVE_STANDARD)
    # The steward's environment may hold keys, and a command can read that of its init in /proc.
    environment = {k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"}
    try:
        pid = os.posix_spawn(
            INTERPRETER,
            program.build_argv("main"),
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
