"""Watch and reap an attempt's first process (its init), from the steward's end.

held       the init waits for GO, and runs nothing of the task
executing  since `release`
over       no other process of the attempt is left, and exit.json is written (`wait_ended`)

An attempt is over when its init sends RECORDED, or else when the init exits. RECORDED comes first:
the kernel needs time to remove the namespaces of the init, which is reaped in the background.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from retinue.child.control_protocol import EXECUTED, GO, RECORDED
from retinue.child.gateway_socket import HANDED, LISTEN
from retinue.core.errors import LaunchFailed
from retinue.core.result import Ending, EndKind, signal_name
from retinue.files import RESERVE, unlock_folders
from retinue.formats.exit_record import LARGEST_RECORD, parse_ending
from retinue.ports import ProcessIdentity
from retinue.runtime import procfs
from retinue.runtime.launch_handshake import (
    GONE,
    LAUNCH_SECONDS,
    Launcher,
    fetch_adopted_socket,
    receive_into,
    receive_socket,
)

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


RECORD = "exit.json"


class ChildProcess:
    """An attempt's init, held by a pidfd. It is launched here, or adopted."""

    def __init__(
        self,
        identity: ProcessIdentity,
        pidfd: int,
        folder: Path,
        *,
        control: socket.socket | None = None,
        early: bytes = b"",
        reaper: Reaper | None = None,
        launcher: Launcher | None = None,
        when_executing: Callable[[], None] = lambda: None,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        """Args:
        folder: the runtime folder, where the init writes its exit record.
        control: the control socket of a held init; None if the child was adopted.
        early: what the init sent on that socket so far.
        reaper: reaps the init after RECORDED; None if only its exit ends the attempt.
        launcher: the process in front of the watched one, if any.
        when_executing: called once the command executes.
        at_end: called once no process of the attempt is left.
        """
        self._identity = identity
        self._pidfd = pidfd
        self._folder = folder
        self._control = control
        self._said = bytearray(early)
        self._held = control is not None
        self._listening: asyncio.AbstractEventLoop | None = None  # for RECORDED, on that loop
        self._reaper = reaper
        self._launcher = launcher
        self._when_executing = when_executing
        self._at_end = at_end
        self._killed = False
        self._waiters: set[asyncio.Future[None]] = set()
        self._ending: Ending | None = None

    @property
    def identity(self) -> ProcessIdentity:
        return self._identity

    async def take_listener(self) -> socket.socket | None:
        """Return the gateway socket that the init opened; None if it opened none."""
        loop = asyncio.get_running_loop()
        if self._control is not None and self._held:
            with suppress(TimeoutError, *GONE):  # `release` fails, too, and reports it
                async with asyncio.timeout(LAUNCH_SECONDS):
                    await loop.sock_sendall(self._control, LISTEN)
                    said, found = await receive_socket(self._control)
                    self._said += said.removeprefix(HANDED)
                    if found is not None:
                        return found
        return await fetch_adopted_socket(self._folder)

    async def release(self) -> None:
        """Let the command execute; does nothing if it was released before, or adopted.

        Raises:
            LaunchFailed: the command could not be executed; the init is ending.
        """
        held = self._held
        self._held = False
        if self._ending is not None:
            raise LaunchFailed(f"it was not executed: {self._ending.describe()}")
        if not held or self._control is None:
            return
        try:
            await self._send_go(self._control)
        except BaseException as fault:
            self._close_control()
            if isinstance(fault, TimeoutError):
                # A silent init could still execute the command later.
                self.kill()
                raise LaunchFailed("its init did not answer in time and was killed") from fault
            raise
        if self._reaper is None:
            self._close_control()
        else:
            self._listen(self._control)
        self._when_executing()

    async def _send_go(self, control: socket.socket) -> None:
        """Send GO and wait until the command executes.

        Raises:
            LaunchFailed: the command was not executed, for the reason that the init gave.
            TimeoutError: the init did not answer.
        """
        loop = asyncio.get_running_loop()
        executed = EXECUTED.encode()
        with suppress(*GONE):
            async with asyncio.timeout(LAUNCH_SECONDS):
                # An init that failed may be gone, but its reason can still be read.
                with suppress(*GONE):
                    await loop.sock_sendall(control, GO)
                # Do not read until end of file: a launcher may keep the other end open.
                while not self._said.startswith(executed):
                    if not await receive_into(self._said, control):
                        break
        if not self._said.startswith(executed):
            why = self._said[1:].decode("utf-8", "replace")
            raise LaunchFailed(why or "its init ended before the command could be executed")
        del self._said[: len(executed)]

    def _listen(self, control: socket.socket) -> None:
        """Listen for RECORDED; that of a short command came with the first answer already."""
        self._listening = asyncio.get_running_loop()
        self._listening.add_reader(control, self._on_message, control)
        if self._said:
            self._on_recorded()

    def _on_message(self, control: socket.socket) -> None:
        said = b""
        with suppress(OSError):
            said = control.recv(4096)
        if said == RECORDED.encode():
            self._on_recorded()
        elif not said:
            self._close_control()

    def _on_recorded(self) -> None:
        """Accept the record as the end of the attempt, and have the exiting init reaped."""
        # Once the runtime is closed, no process may be left behind: then its exit is the end.
        if self._ending is not None or self._reaper is None or self._reaper.closed:
            return
        # Without a free descriptor the record is read later, when the init exits.
        with suppress(OSError):
            ending = read_record(self._folder)
            self._close_control()
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._pidfd)
            self._reaper.reap_later(self._pidfd)
            self._settle(ending)

    def _close_control(self) -> None:
        if self._control is not None:
            if self._listening is not None:
                stop_reading(self._listening, self._control.fileno())
            self._control.close()
            self._control = None

    def stop(self) -> None:
        """Ask the init to stop the command: SIGINT, SIGTERM, SIGKILL. Repeating is harmless."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the init and all its descendants; without an exit record the end is LOST."""
        self._killed = True
        # The kernel kills a PID namespace with its init; elsewhere it is done one by one.
        if self._pidfd >= 0 and not procfs.is_namespace_init(self._identity.pid):
            with suppress(OSError):  # where /proc cannot be read, init alone is reached
                self._kill_descendants()
        self._send(signal.SIGKILL)

    def _kill_descendants(self) -> None:
        """Kill all processes below the watched one.

        Behind a launcher, the init is a direct child of the watched process. It is stopped until
        its own descendants are gone, so that it neither starts processes nor writes a record.
        """
        self._send(signal.SIGSTOP)
        # First pass: stop the direct children and kill the rest. Second pass: kill those, too.
        for to_leaders in (signal.SIGSTOP, signal.SIGKILL):
            reached: set[tuple[int, int]] = set()
            while is_same_process_alive(self._identity):
                below = procfs.list_process_tree(self._identity.pid)
                new = [each for each in below if (each.pid, each.start_ticks) not in reached]
                # A stopped process, or one with SIGKILL pending, cannot fork: none will follow.
                if not new:
                    break
                for each in new:
                    leads = each.parent == self._identity.pid
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(each.pid, to_leaders if leads else signal.SIGKILL)
                    reached.add((each.pid, each.start_ticks))

    def _send(self, number: signal.Signals) -> None:
        if self._pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    async def wait_ended(self) -> Ending:
        """Wait until no process of the child is left, and return how it ended.

        Several tasks may wait at once, and each may be cancelled.
        """
        loop = asyncio.get_running_loop()
        while self._ending is None:
            waiter = loop.create_future()
            if not self._waiters:
                loop.add_reader(self._pidfd, self._on_exit, loop)
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
                if not self._waiters and self._ending is None:
                    loop.remove_reader(self._pidfd)
        return self._ending

    def retire(self) -> None:
        """Do nothing: a local child leaves nothing elsewhere."""

    def _on_exit(self, loop: asyncio.AbstractEventLoop) -> None:
        """Reap the init, read its record and release all descriptors."""
        loop.remove_reader(self._pidfd)
        status = reap(self._pidfd)  # None of an adopted process, which is not ours to reap
        if self._launcher is not None:
            self._launcher.end()
        self._close_control()
        self._settle(
            read_exit_record(self._folder)
            or make_lost_ending(_describe_wait_status(status, asked=self._killed))
        )

    def _settle(self, ending: Ending) -> None:
        self._ending = ending
        self._pidfd = -1
        self._at_end()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


def is_same_process_alive(identity: ProcessIdentity) -> bool:
    """Return whether the pid still belongs to that process, and it is no zombie."""
    found = procfs.stat(identity.pid)
    return found is not None and found.start_ticks == identity.start_ticks and found.state != "Z"


def read_exit_record(folder: Path, attempt: int | None = None) -> Ending | None:
    """Return the ending from the exit record, or None if there is no record."""
    try:
        # Descriptors may have run out; a record must be readable all the same.
        with RESERVE.use_descriptors():
            try:
                return read_record(folder, attempt)
            except PermissionError:
                # A child without a sandbox can remove permissions from its own folders.
                unlock_folders(folder.parent, folder)
                return read_record(folder, attempt)
    except FileNotFoundError:
        return None
    except OSError as fault:
        return make_lost_ending(
            f"unreadable exit record: {errno.errorcode.get(fault.errno or 0, 'error')}"
        )


def read_record(folder: Path, attempt: int | None = None) -> Ending:
    """Return the ending from the exit record.

    Raises:
        OSError: the record does not exist, or cannot be opened.
    """
    # A child without a boundary can replace the file: follow no link, wait for no FIFO.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.open(f"{folder}/{RECORD}", flags)
    with open(file, "rb", buffering=0) as record:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return make_lost_ending("unreadable exit record: not a regular file")
        return parse_ending(record.read(LARGEST_RECORD + 1) or b"", attempt)


def make_lost_ending(error: str) -> Ending:
    return Ending(kind=EndKind.LOST, error=error)


def _describe_wait_status(status: os.waitid_result | None, *, asked: bool) -> str:
    """Describe the exit of an init that left no record."""
    if status is None:
        return "disappeared without a record"
    if status.si_code == os.CLD_EXITED:
        why = errno.errorcode.get(status.si_status, f"code {status.si_status}")
        return f"its end could not be recorded: {why}"
    killed = f"killed by {signal_name(status.si_status)}"
    return killed if asked else f"{killed} from outside"
