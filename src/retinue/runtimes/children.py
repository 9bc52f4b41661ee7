"""An attempt's first process, its init, from the outside: watched to its end, judged by its record.

held       it waits at its gate, and runs nothing of the task
executing  since `release`
over       nothing else of the attempt is left, and its end is recorded: `ended` tells it
let go     by `let_go`, once that is in the database

How an attempt is known to be over, and what becomes of its init then, makes the kinds: here its
init ends with it, in `leaving` it says a word first and is reaped later, in `staying` it says the
word and waits for another order.
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

from retinue.domain.ending import Ending, EndKind, signal_name
from retinue.domain.errors import LaunchFailed
from retinue.files import RESERVE
from retinue.ports import ProcessIdentity
from retinue.runtimes import procfs
from retinue.runtimes.fresh import Launcher
from retinue.runtimes.gate import Gate
from retinue.runtimes.listeners import ask_again
from retinue.wire.ending import LARGEST_RECORD, parse_ending

RECORD = "exit.json"


class ProcessChild:
    """One attempt's init, held by its pidfd until it has ended."""

    def __init__(
        self,
        identity: ProcessIdentity,
        pidfd: int,
        folder: Path,
        gate: Gate | None = None,
        launcher: Launcher | None = None,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Args: then: what is done once its command executes."""
        self._identity = identity
        self._pidfd = pidfd
        self._folder = folder
        self._gate = gate
        self._held = gate is not None
        self._launcher = launcher
        self._then = then
        self._killed = False
        self._waiters: set[asyncio.Future[None]] = set()
        self._ending: Ending | None = None

    @property
    def identity(self) -> ProcessIdentity:
        return self._identity

    async def listener(self) -> socket.socket | None:
        """What its first process opened for its gateway; None when it opened none."""
        if self._gate is not None:
            with suppress(TimeoutError):  # then its release will not be answered either
                if (found := await self._gate.listener()) is not None:
                    return found
        return await ask_again(self._folder)

    async def release(self) -> None:
        """The command is executing; for one that was released or adopted, nothing changes.

        Raises:
            LaunchFailed: it could not be executed; the process is ending.
        """
        held, self._held = self._held, False
        if self._ending is not None:
            raise LaunchFailed(f"it was not executed: {self._ending.describe()}")
        if held:
            try:
                await self._open()
            except TimeoutError as fault:
                self.kill()
                raise LaunchFailed("its init did not answer in time and was killed") from fault
            self._then()

    async def _open(self) -> None:
        """Raises:
        LaunchFailed, TimeoutError: the command is not executing.
        """
        gate, self._gate = self._gate, None
        if gate is not None:
            try:
                await gate.open()
            finally:
                gate.close()

    def stop(self) -> None:
        """init has been asked to begin the stop ladder; a second time changes nothing."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """init and all below it are being killed; without init's record, the end is LOST."""
        self._killed = True
        if self._pidfd >= 0 and not procfs.leads_namespace(self._identity.pid):
            with suppress(OSError):  # where /proc cannot be read, init alone is reached
                self._kill_descendants()
        self._send(signal.SIGKILL)

    def _kill_descendants(self) -> None:
        """Nobody is left below but the dying.

        Behind a launcher our init is one below: whoever leads the others stands still until they
        are gone, so that it starts nobody and records nothing of its own.
        """
        self._send(signal.SIGSTOP)
        for to_leaders in (signal.SIGSTOP, signal.SIGKILL):
            reached: set[tuple[int, int]] = set()
            while lives(self._identity):
                below = procfs.descendants(self._identity.pid)
                new = [each for each in below if (each.pid, each.start_ticks) not in reached]
                if not new:  # who has SIGKILL pending, or stands still, can no longer fork
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

    async def ended(self) -> Ending:
        """No process of the child is left; how it ended. Any number may wait, and give up."""
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

    def let_go(self) -> None:
        """Its init ended with it."""

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.add_reader(self._pidfd, self._conclude, loop)

    def _look_away(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(self._pidfd)

    def _conclude(self, loop: asyncio.AbstractEventLoop) -> None:
        """The process is reaped, its end known, and nothing of ours is held any more."""
        loop.remove_reader(self._pidfd)
        status = None
        with suppress(ChildProcessError):  # adopted: someone else's to reap
            status = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
        if self._launcher is not None:
            self._launcher.end()
        os.close(self._pidfd)
        if self._gate is not None:
            self._gate.close()
        self._settle(recorded(self._folder) or lost(_last_words(status, asked=self._killed)))

    def _settle(self, ending: Ending) -> None:
        self._ending, self._pidfd = ending, -1
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


def take_up(pid: int, gate: Gate, folder: Path, launcher: Launcher) -> ProcessChild:
    """Whoever waits at the gate, behind a launcher, is watched from now on.

    Raises:
        OSError: it cannot be, and is gone.
    """
    try:
        identity, pidfd = procfs.hold(pid)
        return ProcessChild(identity, pidfd, folder, gate, launcher)
    except OSError:
        gate.close()  # it sees that nobody is there, and goes
        launcher.end()
        raise


def lives(identity: ProcessIdentity) -> bool:
    """Whether it is still that very process, and no zombie that nobody has reaped yet."""
    found = procfs.stat(identity.pid)
    return found is not None and found.start_ticks == identity.start_ticks and found.state != "Z"


def recorded(folder: Path, attempt: int | None = None) -> Ending | None:
    """The ending that init recorded, or None; follows no link and waits on no FIFO."""
    try:
        with RESERVE.lent():
            return read_record(folder, attempt)
    except FileNotFoundError:
        return None
    except OSError as fault:
        return lost(f"unreadable exit record: {errno.errorcode.get(fault.errno or 0, 'error')}")


def read_record(folder: Path, attempt: int | None = None) -> Ending:
    """Raises:
    OSError: there is none, or it cannot be opened.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.open(f"{folder}/{RECORD}", flags)
    with open(file, "rb", buffering=0) as record:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return lost("unreadable exit record: not a regular file")
        return parse_ending(record.read(LARGEST_RECORD + 1) or b"", attempt)


def lost(error: str) -> Ending:
    return Ending(kind=EndKind.LOST, error=error)


def _last_words(status: os.waitid_result | None, *, asked: bool) -> str:
    """What a wait status tells of an init that left no record."""
    if status is None:
        return "disappeared without a record"
    if status.si_code == os.CLD_EXITED:
        why = errno.errorcode.get(status.si_status, f"code {status.si_status}")
        return f"its end could not be recorded: {why}"
    killed = f"killed by {signal_name(status.si_status)}"
    return killed if asked else f"{killed} from outside"
