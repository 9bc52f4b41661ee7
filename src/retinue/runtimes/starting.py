"""From a launch order to an init that waits at its gate, or to nothing at all."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import marshal
import os
import signal
import socket
import sys
from contextlib import ExitStack, suppress
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER, cache_from_source
from pathlib import Path
from typing import Literal

from retinue.domain.errors import LaunchFailed
from retinue.ports import LaunchOrder
from retinue.runtimes import procfs

Containment = Literal["pid-namespace", "subreaper"]

# The interpreter itself: a shim that chooses a version would cost ten times its start.
INTERPRETER = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)

_INIT = Path(__file__).parent.parent / "child" / "init.py"
_CONTROL = 3
_ABOVE_STANDARD = 10  # where a descriptor cannot collide with those that init is given
_GO = b"g"
_GONE = (BrokenPipeError, ConnectionResetError)
_HINTS = {
    errno.EMFILE: "wait for children to end, or raise the limit of open files",
    errno.ENFILE: "wait for children to end, or raise the limit of open files",
    errno.EAGAIN: "wait for children to end, or raise the limit of processes",
    errno.ENOMEM: "wait for children to end, then try again",
}


class NoNamespaces(LaunchFailed):
    """The kernel does not give us the namespaces; the message says why."""


class Gate:
    """Our side of the control socket of an init that waits to be released."""

    def __init__(self, control: socket.socket, early: bytes, timeout_s: float) -> None:
        self._control = control
        self._said = early
        self._timeout_s = timeout_s

    def close(self) -> None:
        self._control.close()

    async def open(self) -> None:
        """The command is executing, and the control socket closed.

        Raises:
            LaunchFailed: it is not, for the reason init gave.
            TimeoutError: init said nothing.
        """
        loop = asyncio.get_running_loop()
        with self._control, suppress(*_GONE):
            async with asyncio.timeout(self._timeout_s):
                with suppress(*_GONE):
                    await loop.sock_sendall(self._control, _GO)
                while more := await loop.sock_recv(self._control, 4096):
                    self._said += more
        if not self._said.startswith(b"+"):
            why = self._said[1:].decode("utf-8", "replace")
            raise LaunchFailed(why or "its init ended before the command could be executed")


async def start(
    containment: Containment, order: LaunchOrder, timeout_s: float
) -> tuple[int, int, Gate]:
    """The pid and pidfd of an init that has its order and waits, and its gate.

    Raises:
        LaunchFailed: there is no such process, and nothing is left of it.
    """
    try:
        message = _encoded(order)
        with ExitStack() as undo:
            label = f"{order.task}/{order.subagent}#{order.attempt}"
            control, started = _spawn(undo, containment, label)
            async with asyncio.timeout(timeout_s):
                pid, early = await _introduced(control, message)
                if pid != started:
                    await _reaped(started)
            pidfd = os.pidfd_open(pid)
            undo.pop_all()
    except (OSError, ValueError) as fault:
        raise launch_failed(fault) from fault
    return pid, pidfd, Gate(control, early, timeout_s)


def probe(timeout_s: float) -> Containment:
    """What this machine can contain a command with, tried with an init that is sent away again.

    Raises:
        LaunchFailed: not even that could be started.
    """
    try:
        with ExitStack() as undo:
            control, _ = _spawn(undo, "pid-namespace", "probe")
            control.settimeout(timeout_s)
            return "pid-namespace" if control.recv(4096).startswith(b"pid ") else "subreaper"
    except OSError as fault:
        raise launch_failed(fault) from fault


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


def precompile() -> None:
    """init.py has its compiled form beside it, where that can be written."""
    with suppress(OSError):
        SourceFileLoader("init", str(_INIT)).get_code("init")


def _script() -> str:
    """init.py compiled, which starts a quarter faster, as long as that form is current."""
    compiled = cache_from_source(str(_INIT))
    try:
        with open(compiled, "rb") as file:
            header = file.read(16)
    except OSError:
        return str(_INIT)
    source = _INIT.stat()
    written_from = (0, int(source.st_mtime), source.st_size)
    numbers = (number & 0xFFFFFFFF for number in written_from)
    current = MAGIC_NUMBER + b"".join(number.to_bytes(4, "little") for number in numbers)
    return compiled if header == current else str(_INIT)


def _encoded(order: LaunchOrder) -> bytes:
    """The order as init reads it: bytes throughout, so that no locale can come in between."""
    if not order.argv:
        raise ValueError("the command is empty")
    environment = {os.fsencode(k): os.fsencode(v) for k, v in order.environment.items()}
    body = marshal.dumps(
        {
            "attempt": order.attempt,
            "argv": [os.fsencode(word) for word in order.argv],
            "environment": environment,
            "workspace": os.fsencode(order.workspace),
            "runtime_folder": os.fsencode(order.runtime_folder),
            "timeout_ms": order.timeout_ms,
            "graces_ms": order.graces_ms,
            "output_limit_bytes": order.output_limit_bytes,
        }
    )
    return len(body).to_bytes(8, sys.byteorder) + body


def _spawn(undo: ExitStack, containment: Containment, label: str) -> tuple[socket.socket, int]:
    """A new interpreter runs init; our end of its control socket, and its pid.

    Undone, neither it nor a clone it made is left, and the socket is closed.
    """
    ours, theirs = socket.socketpair()
    undo.enter_context(ours)
    with theirs:
        passed = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, _ABOVE_STANDARD)
    # Of our own environment nothing goes along: the command could read it from init's.
    environment = {k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"}
    try:
        pid = os.posix_spawn(
            INTERPRETER,
            [INTERPRETER, "-I", "-S", _script(), containment, label],
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_DUP2, passed, _CONTROL),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=signal.valid_signals(),
        )
    finally:
        os.close(passed)
    undo.callback(_abandon, pid)
    undo.callback(ours.close)  # first of all: where descriptors ran out, _abandon needs one
    ours.setblocking(False)
    return ours, pid


async def _introduced(control: socket.socket, message: bytes) -> tuple[int, bytes]:
    """The order is delivered; init's pid, and what it said after that, if it failed early."""
    loop = asyncio.get_running_loop()
    said = b""
    with suppress(*_GONE):
        with suppress(*_GONE):
            await loop.sock_sendall(control, message)
        while b"\n" not in said and (more := await loop.sock_recv(control, 4096)):
            said += more
    line, _, early = said.partition(b"\n")
    word, _, rest = line.decode("utf-8", "replace").partition(" ")
    if word == "unavailable":
        raise NoNamespaces(rest)
    if word != "pid":
        raise LaunchFailed(rest or "its init ended before it could say anything")
    return int(rest), early


async def _reaped(pid: int) -> None:
    """A child that is about to exit has exited and left no zombie."""
    loop = asyncio.get_running_loop()
    pidfd = os.pidfd_open(pid)
    exited = asyncio.Event()
    try:
        loop.add_reader(pidfd, exited.set)
        await exited.wait()
        with suppress(ChildProcessError):  # where SIGCHLD is ignored, the kernel reaps
            os.waitid(os.P_PIDFD, pidfd, os.WEXITED)  # noqa: ASYNC222  it has exited
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


def _abandon(session: int) -> None:
    """Of a launch that came to nothing no process is left: not the spawned one, not its clone.

    Both are ours, and nothing else is in the session; while one of them lives, nobody else can
    get its number.
    """
    me = os.getpid()
    while ours := [
        each for each in procfs.all_processes() if each.parent == me and each.session == session
    ]:
        for each in ours:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(each.pid, signal.SIGKILL)
                os.waitpid(each.pid, 0)
