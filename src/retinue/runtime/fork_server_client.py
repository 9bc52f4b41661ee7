"""Client of the fork servers: starts them, restarts them and requests children."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from retinue.child.control_protocol import Order, encode_order
from retinue.child.fork_server import CHANNEL, SIZE
from retinue.core.errors import LaunchFailed
from retinue.runtime.handshake import GONE, exchange_order
from retinue.runtime.init_pool import Init, InitPool
from retinue.runtime.reaper import Reaper, read_child_pid, reap, reap_abandoned, stop_reading

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


class NewInit(NamedTuple):
    """An init that the fork server was asked to make ahead."""

    control: socket.socket
    namespaces: int
    # Read before the clone: mounts that change meanwhile make the init outdated.
    generation: int
    loop: asyncio.AbstractEventLoop
    said: bytearray


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
        self.reaper = Reaper()
        self._timeout_s = timeout_s
        self._program = program
        self._channel: socket.socket | None = None
        self._pidfd = -1
        self._stamp = program.compute_stamp()
        self._starting = asyncio.Lock()
        self._expected: asyncio.Task[None] | None = None
        self._inits = InitPool(self.reaper)
        self._coming: dict[int, NewInit] = {}  # inits that are being made ahead, by namespaces

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
        init = self._inits.take(order.namespaces)
        if init is not None and await init.give(order, self._timeout_s):
            return init, b""
        # A lost server is replaced by the second request; its order was not carried out.
        with suppress(Lost):
            return await self._clone(order)
        try:
            return await self._clone(order)
        except Lost as why:
            raise LaunchFailed(f"the fork server {why}") from None

    def close(self) -> None:
        """End the server and idle inits; running children go on, as they are not its children."""
        if self._expected is not None:
            self._expected.cancel()
        self._inits.close()
        # While the server runs: it tells the pids of children that it makes just now.
        self.reaper.reap_abandoned()
        for new in self._coming.values():
            stop_reading(new.loop, new.control.fileno())
            reap_abandoned(new.control, new.said)
        self._coming.clear()
        if (pidfd := self._kill()) >= 0:
            reap(pidfd)
        self.reaper.close()

    def _kill(self) -> int:
        """Kill the server and return its pidfd, by which it is to be reaped; -1 if none ran."""
        self._inits.discard_all()
        if self._channel is None:
            return -1
        self._channel.close()
        self._channel = None
        # SIGKILL, because a server that is stopped would not see that its channel is closed.
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        return self._pidfd

    def make_ahead(self, namespaces: int) -> None:
        """Have an init cloned for the next order with these namespaces, unless one is idle."""
        channel = self._channel
        if channel is None or namespaces in self._coming or self._inits.has_idle(namespaces):
            return
        with suppress(OSError):  # the next launch meets and reports it
            control = _request_clone(channel, namespaces)
            loop = asyncio.get_running_loop()
            new = NewInit(control, namespaces, self._inits.generation, loop, bytearray())
            self._coming[namespaces] = new
            loop.add_reader(control, self._receive_ahead, new)

    def _receive_ahead(self, new: NewInit) -> None:
        """Add an init that was made ahead to the pool, once the server has told its pid."""
        more = b""
        with suppress(OSError):
            more = new.control.recv(4096)
        new.said.extend(more)
        if more and b"\n" not in new.said:
            return
        new.loop.remove_reader(new.control)
        del self._coming[new.namespaces]
        pid = read_child_pid(new.said)
        if not pid:
            new.control.close()
            return
        with suppress(OSError):  # no descriptor is free; the init was ended
            self._inits.add(Init(pid, new.control, new.namespaces, new.generation))

    async def _clone(self, order: Order) -> tuple[Init, bytes]:
        """Have the server clone an init, and send it the order.

        Raises:
            Lost: there is no child, and the server was ended.
        """
        async with self._starting:
            channel = await self._get_channel()
        generation = self._inits.generation
        said = bytearray()
        with self._close_channel(channel):
            control = _request_clone(channel, order.namespaces)
            try:
                async with asyncio.timeout(self._timeout_s):
                    pid, early = await exchange_order(control, encode_order(order), said)
            except BaseException:  # cancellation included: the server may still make the child
                self.reaper.abandon_launch(control, said)
                raise
        return Init(pid, control, order.namespaces, generation), early

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
            if self._channel is channel and (pidfd := self._kill()) >= 0:
                self.reaper.reap_later(pidfd)
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
            self._inits.watch_mounts()
            self._channel, self._pidfd = _spawn(self._program)
            with self._close_channel(self._channel):
                async with asyncio.timeout(self._timeout_s):
                    if not await loop.sock_recv(self._channel, 1):
                        raise EOFError
        return self._channel


def _list_library_folders() -> list[str]:
    """Return the folders of third-party libraries."""
    return [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]


def _request_clone(channel: socket.socket, namespaces: int) -> socket.socket:
    """Ask the server for an init with these namespaces, and return its control socket.

    Raises:
        OSError: the request could not be sent.
    """
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    # Our copy of `theirs` must go, or the death of the child would not read as end of file.
    with theirs:
        try:
            request = namespaces.to_bytes(SIZE, sys.byteorder)
            socket.send_fds(channel, [request], [theirs.fileno()])
        except OSError:
            ours.close()
            raise
    return ours


def _spawn(program: Program) -> tuple[socket.socket, int]:
    """Start a fork server; return its channel and its pidfd.

    Raises:
        OSError: it could not be started.
    """
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
        pidfd = _open_pidfd(pid)
    except OSError:
        ours.close()
        raise
    finally:
        os.close(passed)
    ours.setblocking(False)
    return ours, pidfd


def _open_pidfd(pid: int) -> int:
    """Raises:
    OSError: no descriptor is free; the process was ended.
    """
    try:
        return os.pidfd_open(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
