"""A foreign command as a process of this machine, under a first process of its own.

The steward is one thread and never forks: it asks a fork server, whose clone,
alone in new namespaces, is a direct child of the steward. From then on its
pidfd is all that is watched; how it ended is read from the record it leaves.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import stat
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Literal

from retinue.child import landlock, seccomp
from retinue.child.order import Order, encode, variables, words
from retinue.domain.boundary import INHERITED, ISOLATED, Boundary
from retinue.domain.ending import Ending, EndKind
from retinue.domain.errors import LaunchFailed
from retinue.domain.ids import SubagentId, TaskId
from retinue.ports import LaunchOrder, ProcessIdentity
from retinue.runtimes import procfs
from retinue.runtimes.forkserver import INTERPRETER, ForkServer
from retinue.runtimes.fresh import start_fresh
from retinue.runtimes.gate import Gate, NoNamespaces
from retinue.runtimes.view import sandbox_for
from retinue.wire.ending import LARGEST_RECORD, parse_ending

Containment = Literal["pid-namespace", "subreaper"]

_RECORD = "exit.json"
_HINTS = {
    errno.EMFILE: "wait for children to end, or raise the limit of open files",
    errno.ENFILE: "wait for children to end, or raise the limit of open files",
    errno.EAGAIN: "wait for children to end, or raise the limit of processes",
    errno.ENOMEM: "wait for children to end, then try again",
}


class ProcessRuntime:
    """Commands run as children of this process; whatever they start ends with them."""

    def __init__(
        self, *, containment: Containment | None = None, launch_timeout_s: float = 30.0
    ) -> None:
        self._containment = containment
        self._timeout_s = launch_timeout_s
        self._server = ForkServer(launch_timeout_s)
        self._isolation: tuple[str | None] | None = None  # why it is missing, once that is known

    def unavailable(self) -> str | None:
        if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
            return "needs Linux 5.4 or newer, for pidfds"
        if not os.access(INTERPRETER, os.X_OK):
            return f"the Python interpreter {INTERPRETER} cannot be executed"
        return None

    async def warm(self) -> None:
        """The next launch finds everything ready."""
        await self._server.warm()

    async def containment(self) -> Containment:
        """What keeps a command's processes together here; found out by trying, once."""
        if self._containment is None:
            await self._try(Boundary(mode=INHERITED))
        return self._containment or "subreaper"

    async def isolation_missing(self) -> str | None:
        """Why children cannot be isolated here, or None; found out by isolating one, once."""
        if self._isolation is None:
            missing = None if seccomp.available() else "system calls of this machine are unknown"
            if not landlock.version():
                missing = "the kernel has no Landlock"
            self._isolation = (missing or await self._try(Boundary(mode=ISOLATED)),)
        return self._isolation[0]

    def close(self) -> None:
        """The fork server is gone; children are not touched."""
        self._server.close()

    async def launch(self, order: LaunchOrder) -> ProcessChild:
        """A process waits at its gate for this attempt.

        Raises:
            LaunchFailed: no process exists, and nothing is left of the attempt to make one.
        """
        _forget_record(order.runtime_folder)
        try:
            return await self._launch(order, self._containment != "subreaper")
        except NoNamespaces:
            if self._containment is not None or order.boundary.mode == ISOLATED:
                raise
            self._containment = "subreaper"
            return await self._launch(order, False)
        except (OSError, ValueError) as fault:
            raise launch_failed(fault) from fault

    async def _launch(self, order: LaunchOrder, contained: bool) -> ProcessChild:
        if order.boundary.mode == ISOLATED and not contained:
            raise NoNamespaces("isolation needs namespaces, and there are none")
        data = _encoded(order, contained)
        if order.boundary.launch_prefix:
            pid, gate = await start_fresh(order.boundary.launch_prefix, data, self._timeout_s)
        else:
            pid, gate = await self._server.start(data)
        if contained:
            self._containment = "pid-namespace"
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            gate.close()  # it sees that nobody is there, and goes
            raise
        ticks = procfs.start_ticks(pid) or 0
        identity = ProcessIdentity(boot_id=procfs.boot_id(), pid=pid, start_ticks=ticks)
        return ProcessChild(identity, pidfd, order.runtime_folder, gate)

    async def _try(self, boundary: Boundary) -> str | None:
        """Why a child behind this boundary could not be run, or None."""
        with tempfile.TemporaryDirectory(prefix="retinue-") as folder:
            order = LaunchOrder(
                task=TaskId("probe"),
                subagent=SubagentId("probe"),
                attempt=1,
                argv=("/bin/true",),
                environment={},
                workspace=Path(folder) / "workspace",
                runtime_folder=Path(folder),
                timeout_ms=int(self._timeout_s * 1000),
                graces_ms=(0, 0),
                output_limit_bytes=0,
                boundary=boundary,
            )
            order.workspace.mkdir()
            try:
                child = await self.launch(order)
                await child.release()
                ending = await child.ended()
            except LaunchFailed as error:
                return error.message
            return None if ending.clean else ending.describe()

    def adopt(self, identity: ProcessIdentity, runtime_folder: Path) -> ProcessChild | None:
        """The living process of an earlier steward, by boot, number and start; else None."""
        if identity.boot_id != procfs.boot_id() or not _lives(identity):
            return None
        try:
            pidfd = os.pidfd_open(identity.pid)
        except ProcessLookupError:
            return None
        if not _lives(identity):  # it ended, and its number went to another, before we held it
            os.close(pidfd)
            return None
        return ProcessChild(identity, pidfd, runtime_folder)

    def ending(self, runtime_folder: Path, attempt: int) -> Ending:
        """How an attempt ended that nobody watched to its end, by the record it left."""
        return _recorded(runtime_folder, attempt) or _lost("disappeared without a record")


class ProcessChild:
    """One attempt's init, held by its pidfd until it has ended."""

    def __init__(
        self, identity: ProcessIdentity, pidfd: int, folder: Path, gate: Gate | None = None
    ) -> None:
        self._identity = identity
        self._pidfd = pidfd
        self._folder = folder
        self._gate = gate
        self._killed = False
        self._waiters: set[asyncio.Future[None]] = set()
        self._ending: Ending | None = None

    @property
    def identity(self) -> ProcessIdentity:
        return self._identity

    async def release(self) -> None:
        """The command is executing; for one that was released or adopted, nothing changes.

        Raises:
            LaunchFailed: it could not be executed; the process is ending.
        """
        gate, self._gate = self._gate, None
        if self._ending is not None:
            raise LaunchFailed(f"it was not executed: {self._ending.describe()}")
        if gate is not None:
            try:
                await gate.open()
            except TimeoutError as fault:
                self.kill()
                raise LaunchFailed("its init did not answer in time and was killed") from fault

    def stop(self) -> None:
        """init has been asked to begin the stop ladder; a second time changes nothing."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """init and all below it are being killed; without init's record, the end is LOST."""
        self._killed = True
        if self._pidfd >= 0 and not procfs.leads_namespace(self._identity.pid):
            self._kill_descendants()
        self._send(signal.SIGKILL)

    def _kill_descendants(self) -> None:
        """Nobody is left below init but the dying; it stands still, so nobody can slip away."""
        self._send(signal.SIGSTOP)
        killed: set[tuple[int, int]] = set()
        while _lives(self._identity):
            below = procfs.descendants(self._identity.pid)
            found = {(each.pid, each.start_ticks) for each in below}
            if found <= killed:  # who has SIGKILL pending can no longer fork
                return
            for pid, _ in found - killed:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            killed |= found

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
                loop.add_reader(self._pidfd, self._conclude, loop)
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
                if not self._waiters and self._pidfd >= 0:
                    loop.remove_reader(self._pidfd)
        return self._ending

    def _conclude(self, loop: asyncio.AbstractEventLoop) -> None:
        """The process is reaped, its end known, and nothing of ours is held any more."""
        loop.remove_reader(self._pidfd)
        status = None
        with suppress(ChildProcessError):  # adopted: someone else's to reap
            status = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
        self._ending = _recorded(self._folder) or _lost(_last_words(status, asked=self._killed))
        os.close(self._pidfd)
        self._pidfd = -1
        if self._gate is not None:
            self._gate.close()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


def launch_failed(fault: OSError | ValueError) -> LaunchFailed:
    """The error that names an errno and what to do about it."""
    if not isinstance(fault, OSError):
        return LaunchFailed(f"EINVAL: {fault}")
    if fault.errno is None:
        return LaunchFailed("its init did not start in time and was killed")
    said = os.strerror(fault.errno)
    text = f"{errno.errorcode.get(fault.errno, fault.errno)}: {said[:1].lower()}{said[1:]}"
    named = f": {os.fsdecode(fault.filename)!r}" if fault.filename else ""
    return LaunchFailed(text + named, hint=_HINTS.get(fault.errno, ""))


def _encoded(order: LaunchOrder, contained: bool) -> bytes:
    if not order.argv:
        raise ValueError("the command is empty")
    sandbox = sandbox_for(order) if order.boundary.mode == ISOLATED else None
    environment = dict(order.environment)
    if sandbox is not None:
        environment |= {"HOME": "/tmp", "TMPDIR": "/tmp"}
        if sandbox.uid is not None:
            for path in sandbox.writable:
                os.chown(path, sandbox.uid, sandbox.uid, follow_symlinks=False)
    return encode(
        Order(
            attempt=order.attempt,
            argv=words(order.argv),
            environment=variables(environment),
            workspace=os.fsencode(order.workspace),
            runtime_folder=os.fsencode(order.runtime_folder),
            timeout_ms=order.timeout_ms,
            graces_ms=order.graces_ms,
            output_limit_bytes=order.output_limit_bytes,
            contained=contained,
            sandbox=sandbox,
        )
    )


def _lives(identity: ProcessIdentity) -> bool:
    """Whether it is still that very process, and no zombie that nobody has reaped yet."""
    found = procfs.stat(identity.pid)
    return found is not None and found.start_ticks == identity.start_ticks and found.state != "Z"


def _forget_record(folder: Path) -> None:
    """No earlier attempt's record can be taken for that of the next.

    Raises:
        LaunchFailed: there is no such folder, or it cannot be written.
    """
    try:
        with os.scandir(folder):  # a missing folder is an error, a missing record is not
            (folder / _RECORD).unlink(missing_ok=True)
    except OSError as fault:
        raise launch_failed(fault) from fault


def _recorded(folder: Path, attempt: int | None = None) -> Ending | None:
    """The ending that init recorded, or None; follows no link and waits on no FIFO."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        file = os.open(folder / _RECORD, flags)
    except FileNotFoundError:
        return None
    except OSError as fault:
        return _lost(f"unreadable exit record: {errno.errorcode.get(fault.errno or 0, 'error')}")
    with open(file, "rb") as record:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return _lost("unreadable exit record: not a regular file")
        return parse_ending(record.read(LARGEST_RECORD + 1), attempt)


def _lost(error: str) -> Ending:
    return Ending(kind=EndKind.LOST, error=error)


def _last_words(status: os.waitid_result | None, *, asked: bool) -> str:
    """What a wait status tells of an init that left no record."""
    if status is None:
        return "disappeared without a record"
    if status.si_code == os.CLD_EXITED:
        why = errno.errorcode.get(status.si_status, f"code {status.si_status}")
        return f"its end could not be recorded: {why}"
    known = status.si_status in signal.valid_signals() and status.si_status < signal.SIGRTMIN
    name = signal.Signals(status.si_status).name if known else f"signal {status.si_status}"
    return f"killed by {name}" if asked else f"killed by {name} from outside"
