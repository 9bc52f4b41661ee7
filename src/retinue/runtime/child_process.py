"""The steward's handle of an attempt's first process (its init).

held       the init waits for GO, and runs nothing of the task
executing  since `release`
over       no other process of the attempt is left, and exit.json is written (`wait_ended`)
retired    by `retire`, once the end is in the database

The classes differ in what shows that an attempt is over, and in what its init does then:

ProcessChild  the init exits
LeavingChild  the init sends FREE; it exits, and is reaped later
StayingChild  the init sends FREE and waits for another order
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

from retinue.child.control_protocol import EXECUTED, FREE, GO
from retinue.core.attempt_end import Ending, EndKind, signal_name
from retinue.core.errors import LaunchFailed
from retinue.files import RESERVE
from retinue.formats.exit_record import LARGEST_RECORD, parse_ending
from retinue.ports import ProcessIdentity
from retinue.runtime import procfs
from retinue.runtime.handshake import LAUNCH_SECONDS, HeldChild, ask_again, is_up, require_up
from retinue.runtime.init_pool import Init, InitPool
from retinue.runtime.launch_prefix import Launcher

RECORD = "exit.json"


class ProcessChild:
    """An attempt whose end is the exit of its init, which is held by a pidfd."""

    def __init__(
        self,
        identity: ProcessIdentity,
        pidfd: int,
        folder: Path,
        gate: HeldChild | None = None,
        launcher: Launcher | None = None,
        then: Callable[[], None] = lambda: None,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        """Args:
        then: called once the command executes.
        at_end: called once no process of the attempt is left.
        """
        self._identity = identity
        self._pidfd = pidfd
        self._folder = folder
        self._gate = gate
        self._held = gate is not None
        self._launcher = launcher
        self._then = then
        self._at_end = at_end
        self._killed = False
        self._waiters: set[asyncio.Future[None]] = set()
        self._ending: Ending | None = None

    @property
    def identity(self) -> ProcessIdentity:
        return self._identity

    async def take_listener(self) -> socket.socket | None:
        """Return the gateway socket that the init opened; None if it opened none."""
        if self._gate is not None:
            with suppress(TimeoutError):  # `release` will time out, too, and report it
                if (found := await self._gate.take_listener()) is not None:
                    return found
        return await ask_again(self._folder)

    async def release(self) -> None:
        """Let the command execute; does nothing if it was released before, or adopted.

        Raises:
            LaunchFailed: the command could not be executed; the init is ending.
        """
        held = self._held
        self._held = False
        if self._ending is not None:
            raise LaunchFailed(f"it was not executed: {self._ending.describe()}")
        if held:
            try:
                await self._open()
            except TimeoutError as fault:
                # A silent init could still execute the command later.
                self.kill()
                raise LaunchFailed("its init did not answer in time and was killed") from fault
            self._then()

    async def _open(self) -> None:
        """Raises:
        LaunchFailed, TimeoutError: the command is not executing.
        """
        gate = self._gate
        self._gate = None
        if gate is not None:
            try:
                await gate.open()
            finally:
                gate.close()

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
                self._watch(loop)
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
                if not self._waiters and self._ending is None:
                    self._look_away(loop)
        return self._ending

    def retire(self) -> None:
        """Let go of the init; here it has exited already."""

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.add_reader(self._pidfd, self._finish, loop)

    def _look_away(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(self._pidfd)

    def _finish(self, loop: asyncio.AbstractEventLoop) -> None:
        """Reap the init, read its record and release all descriptors."""
        loop.remove_reader(self._pidfd)
        status = None
        with suppress(ChildProcessError):  # an adopted process is not ours to reap
            status = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
        if self._launcher is not None:
            self._launcher.end()
        os.close(self._pidfd)
        if self._gate is not None:
            self._gate.close()
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


def take_up(pid: int, gate: HeldChild, folder: Path, launcher: Launcher) -> ProcessChild:
    """Return the handle of a held child behind a launcher.

    Raises:
        OSError: the process cannot be watched; it was ended.
    """
    try:
        identity, pidfd = procfs.hold(pid)
        return ProcessChild(identity, pidfd, folder, gate, launcher)
    except OSError:
        gate.close()  # the child reads end of file, and exits
        launcher.end()
        raise


def is_same_process_alive(identity: ProcessIdentity) -> bool:
    """Return whether the pid still belongs to that process, and it is no zombie."""
    found = procfs.stat(identity.pid)
    return found is not None and found.start_ticks == identity.start_ticks and found.state != "Z"


def read_exit_record(folder: Path, attempt: int | None = None) -> Ending | None:
    """Return the ending from the exit record, or None if there is no record."""
    try:
        # Descriptors may have run out; a record must be readable all the same.
        with RESERVE.use_descriptors():
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


class LeavingChild(ProcessChild):
    """An attempt that is over when its init sends FREE, or else when the init exits.

    FREE comes first: the kernel takes a while to take down the namespaces of the init.
    """

    def __init__(
        self,
        init: Init,
        folder: Path,
        inits: InitPool,
        gate: HeldChild,
        then: Callable[[], None],
        at_end: Callable[[], None],
    ) -> None:
        super().__init__(init.identity, init.pidfd, folder, gate, then=then, at_end=at_end)
        self._init, self._inits = init, inits
        self._free = False

    def retire(self) -> None:
        """Have the exiting init reaped later."""
        if self._free:
            self._free = False
            self._inits.see_off(self._init)

    async def _open(self) -> None:
        gate = self._gate
        self._gate = None
        if gate is not None:
            said = await gate.open()
            self._init.listen(self._on_message)
            # A short command may be over already: its FREE came with the first answer.
            self._on_message(said)

    def _on_message(self, said: bytes) -> None:
        if said == FREE.encode() and self._ending is None:
            # Without a free descriptor the record is read later, when the init exits.
            with suppress(OSError):
                ending = read_record(self._folder)
                self._look_away(asyncio.get_running_loop())
                self._settle(ending)
                self._free = True

    def _finish(self, loop: asyncio.AbstractEventLoop) -> None:
        self._init.close()
        super()._finish(loop)


OVER = (EXECUTED + FREE).encode()


class StayingChild(ProcessChild):
    """An attempt that is over when its init sends FREE; the init then waits for another order.

    If FREE does not come, the attempt is over when the init exits.
    """

    def __init__(self, init: Init, folder: Path, inits: InitPool, early: bytes) -> None:
        super().__init__(init.identity, init.pidfd, folder)
        self._init, self._inits = init, inits
        self._held = True
        self._said = early
        self._up: asyncio.Future[None] | None = None
        self._goes = self._free = False
        init.listen(self._on_message)
        inits.mark_lent(init)

    async def _open(self) -> None:
        if not self._goes:
            self._up = asyncio.get_running_loop().create_future()
            async with asyncio.timeout(LAUNCH_SECONDS):
                await self._init.send(GO)
                await self._up
        require_up(self._said)

    def stop(self) -> None:
        # A late signal must not reach the next attempt, so this init is not reused.
        self._init.outdated = True
        super().stop()

    def kill(self) -> None:
        self._init.outdated = True
        super().kill()

    def retire(self) -> None:
        """Return the init to the pool."""
        if self._free:
            self._free = False
            self._inits.add(self._init)

    def _on_message(self, said: bytes) -> None:
        self._said += said
        # No bytes mean that the init closed its end. After FREE it only has to be reaped; before,
        # its exit is the end of the attempt.
        if not said and self._free:
            self._free = False
            self._init.end()
        elif not said:
            self._watch_it_go()
        elif self._said == OVER:
            self._accept_record()
        answered = self._goes or is_up(self._said)
        if answered and self._up is not None and not self._up.done():
            self._up.set_result(None)

    def _accept_record(self) -> None:
        try:
            self._settle(read_record(self._folder))
            self._free = True
        except OSError:
            # Without a free descriptor: close the connection. The init then exits, and its
            # record is read when that is noticed.
            self._init.close()

    def _watch_it_go(self) -> None:
        """Watch for the exit of the init, which sends nothing more."""
        self._goes = True
        if self._waiters:
            self._watch(asyncio.get_running_loop())

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._goes:
            super()._watch(loop)

    def _look_away(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._goes:
            super()._look_away(loop)
