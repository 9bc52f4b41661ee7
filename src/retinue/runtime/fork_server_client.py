"""Client of the fork servers: starts them, restarts them and requests children.

The pool holds inits that were made ahead. An init is the first process of a child's namespaces.
To clone one takes longer than many commands run, so one is made before it is needed. An init serves
a single attempt: only inits that have had no order are in the pool.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
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
from retinue.runtime import procfs
from retinue.runtime.child_process import Reaper, read_child_pid, reap, reap_abandoned, stop_reading
from retinue.runtime.launch_handshake import GONE, exchange_order, send_order

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
            self._end_by_closing(init)
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
            self._end_by_closing(self._idle.pop())

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

    def _end_by_closing(self, init: Init) -> None:
        """Let an idle init exit: it reads end of file."""
        init.control.close()
        self._reaper.reap_later(init.pidfd)

    def _end_expired(self) -> None:
        """End inits that were idle for KEPT_S, and set the timer for the next."""
        loop = asyncio.get_running_loop()
        while self._idle and self._idle[0].since + KEPT_S <= loop.time():
            self._end_by_closing(self._idle.pop(0))
        self._timer = None
        if self._idle:
            self._timer = loop.call_at(self._idle[0].since + KEPT_S, self._end_expired)


# The interpreter itself: a shim that chooses a version would cost ten times its start.
INTERPRETER = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
PACKAGE = Path(__file__).parent.parent
ABOVE_STANDARD = 10  # lowest descriptor to pass on; the ones below are set up in the server
# Modules such as random, threading and logging register fork handlers. A server with one thread
# and no locks does not need them, and they make each clone copy half a megabyte. Only `random`
# would repeat itself in each clone: teams, which run Python, seed it again.
PRELUDE = """import os, sys
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


class ServerLost(Exception):
    """A fork server failed while it handled a request; the message says how."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """Python program of a fork server, or of a single child behind a launcher."""

    module: str
    folders: tuple[str, ...]  # of the package, with the code that its children run
    libraries: bool = False  # needs third-party libraries

    def build_argv(self, function: str) -> list[str]:
        paths = [str(PACKAGE.parent), *(_list_library_folders() if self.libraries else [])]
        code = f"{PRELUDE}from {self.module} import {function}; {function}()"
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
        self._being_made: dict[int, NewInit] = {}  # inits that are being made ahead, by namespaces

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
        with suppress(ServerLost):
            return await self._clone(order)
        try:
            return await self._clone(order)
        except ServerLost as why:
            raise LaunchFailed(f"the fork server {why}") from None

    def close(self) -> None:
        """End the server and idle inits; running children go on, as they are not its children."""
        if self._expected is not None:
            self._expected.cancel()
        self._inits.close()
        # While the server runs: it tells the pids of children that it makes just now.
        self.reaper.reap_abandoned()
        for new in self._being_made.values():
            stop_reading(new.loop, new.control.fileno())
            reap_abandoned(new.control, new.said)
        self._being_made.clear()
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
        if channel is None or namespaces in self._being_made or self._inits.has_idle(namespaces):
            return
        with suppress(OSError):  # the next launch meets and reports it
            control = _request_clone(channel, namespaces)
            loop = asyncio.get_running_loop()
            new = NewInit(control, namespaces, self._inits.generation, loop, bytearray())
            self._being_made[namespaces] = new
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
        del self._being_made[new.namespaces]
        pid = read_child_pid(new.said)
        if not pid:
            new.control.close()
            return
        with suppress(OSError):  # no descriptor is free; the init was ended
            self._inits.add(Init(pid, new.control, new.namespaces, new.generation))

    async def _clone(self, order: Order) -> tuple[Init, bytes]:
        """Have the server clone an init, and send it the order.

        Raises:
            ServerLost: there is no child, and the server was ended.
        """
        async with self._starting:
            channel = await self._get_channel()
        generation = self._inits.generation
        said = bytearray()
        with self._end_if_silent(channel):
            control = _request_clone(channel, order.namespaces)
            try:
                async with asyncio.timeout(self._timeout_s):
                    pid, early = await exchange_order(control, encode_order(order), said)
            except BaseException:  # cancellation included: the server may still make the child
                self.reaper.abandon_launch(control, said)
                raise
        return Init(pid, control, order.namespaces, generation), early

    @contextmanager
    def _end_if_silent(self, channel: socket.socket) -> Iterator[None]:
        """End the server if it does not answer on this channel.

        Raises:
            ServerLost: in place of the end of file, the timeout or the broken connection.
        """
        try:
            yield
        except (EOFError, TimeoutError, *GONE) as fault:
            # Another task may have replaced the server already: leave its successor alone.
            if self._channel is channel and (pidfd := self._kill()) >= 0:
                self.reaper.reap_later(pidfd)
            late = isinstance(fault, TimeoutError)
            raise ServerLost("did not answer in time" if late else "does not stay alive") from None

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
            with self._end_if_silent(self._channel):
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
