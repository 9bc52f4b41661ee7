"""Durable system calls of a steward and of all that it starts: counted, stopped at, torn or failed.

A seccomp filter sends each call that changes files to this process, which numbers those on files of
interest in the order in which they are made, whichever process makes them. One of them can be made
to fail, and the steward can be killed before it, after it, or in the middle of a write.
"""

from __future__ import annotations

import array
import ctypes
import errno
import fcntl
import os
import select
import signal
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retinue.child.allowed_syscalls import ALLOWED
from retinue.child.seccomp import (
    ALLOW,
    ARGUMENTS_AT,
    JUMP_ANY_BIT,
    JUMP_EQUAL,
    LOAD,
    MACHINES,
    NEW_LISTENER,
    NOTIFY,
    NUMBER_AT,
    RETURN,
    SET_MODE_FILTER,
)
from retinue.child.syscalls import PR_SET_NO_NEW_PRIVS, SYS_SECCOMP, call

# Which argument is the descriptor, or the folder that names are relative to; None: no folder.
WRITES = {"write": 0, "pwrite64": 0, "writev": 0}
SYNCS = {"fsync": 0, "fdatasync": 0}
BY_DESCRIPTOR = WRITES | SYNCS | {"ftruncate": 0}
# The folder's argument and the name's, for each name of the call.
BY_NAME: dict[str, tuple[tuple[int | None, int], ...]] = {
    "openat": ((0, 1),),
    "mkdir": ((None, 0),),
    "mkdirat": ((0, 1),),
    "rename": ((None, 0), (None, 1)),
    "renameat": ((0, 1), (2, 3)),
    "renameat2": ((0, 1), (2, 3)),
    "link": ((None, 0), (None, 1)),
    "linkat": ((0, 1), (2, 3)),
    "symlink": ((None, 1),),
    "symlinkat": ((1, 2),),
    "unlink": ((None, 0),),
    "unlinkat": ((0, 1),),
    "rmdir": ((None, 0),),
}
KINDS = {
    **dict.fromkeys(WRITES, "writes"),
    **dict.fromkeys(SYNCS, "syncs"),
    "ftruncate": "truncations",
    "openat": "new files",
    **dict.fromkeys(("mkdir", "mkdirat"), "new folders"),
    **dict.fromkeys(("rename", "renameat", "renameat2"), "renames"),
    **dict.fromkeys(("link", "linkat", "symlink", "symlinkat"), "links"),
    **dict.fromkeys(("unlink", "unlinkat", "rmdir"), "removals"),
}
FAILURES = {"disk full": errno.ENOSPC, "I/O error": errno.EIO}

WAIT_KILLABLE_RECV = 32  # no signal but a fatal one interrupts a call that was announced
RECEIVE, SEND, CONTINUE = 0xC0502100, 0xC0182101, 1
_NOTICE = struct.Struct("QIIiIQ6Q")
_PIDFD_GETFD = 438
_MACHINE = MACHINES.get(os.uname().machine, (0, 0))[0]
_NUMBERS = {n: ALLOWED[n][_MACHINE] for n in (*BY_DESCRIPTOR, *BY_NAME) if n in ALLOWED}
_NAMES = {number: name for name, number in _NUMBERS.items() if number is not None}


@dataclass(frozen=True, kw_only=True)
class Call:
    name: str
    path: str  # of the descriptor, or the last that is named

    @property
    def kind(self) -> str:
        return KINDS[self.name]


@dataclass(frozen=True, kw_only=True)
class Stop:
    """What is done at a call: `before`, `after` or `torn` kill; others are names of FAILURES."""

    number: int  # among the calls that it can be done at
    how: str

    def suits(self, call: Call) -> bool:
        """Return whether this can be done at such a call."""
        match self.how:
            case "torn":
                return call.kind == "writes"
            case "disk full":
                return call.kind != "removals"
            case "I/O error":
                return True
        return call.name != "openat"  # an empty file more is as before the next call on it


class CallWatch:
    """A program whose durable calls are numbered; `stop` names the one that something is done at.

    Args:
        counts: whether a call on this path counts.
    """

    def __init__(self, counts: Callable[[str], bool], stop: Stop | None = None) -> None:
        self._counts = counts
        self._stop = stop
        self._passed = 0  # calls that something could have been done at
        self.calls: list[Call] = []
        self.stopped_at: Call | None = None
        self.failed = ""  # the campaign's own mistake
        self._thread: threading.Thread | None = None
        self.process = 0

    @property
    def fails(self) -> bool:
        """Whether a call fails, and nothing is killed."""
        return self._stop is not None and self._stop.how in FAILURES

    def start(self, run: Callable[[], object]) -> None:
        """Run a function under the filter, in a fork of this process."""
        ours, theirs = socket.socketpair()

        def restrict_and_run() -> None:
            listener = _install_filter()
            socket.send_fds(theirs, [b"x"], [listener])
            os.close(listener)
            ours.close()
            theirs.close()
            run()

        self.process = fork(restrict_and_run)
        theirs.close()
        _, listeners, _, _ = socket.recv_fds(ours, 1, 1)
        ours.close()
        assert listeners, "the filter was refused"
        self._thread = threading.Thread(target=self._serve, args=(*listeners,), daemon=True)
        self._thread.start()

    def join(self, seconds: float) -> bool:
        """Wait until every process under the filter has ended; return whether that is so."""
        assert self._thread is not None
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _serve(self, listener: int) -> None:
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        try:
            while not poll.poll()[0][1] & select.POLLHUP:
                notice = bytearray(_NOTICE.size)
                try:
                    fcntl.ioctl(listener, RECEIVE, notice)
                except OSError:  # its process was killed meanwhile
                    continue
                key, tid, _, number, _, _, *arguments = _NOTICE.unpack(notice)
                error, flags = self._decide(tid, _NAMES[number], arguments)
                with suppress(OSError):
                    fcntl.ioctl(listener, SEND, struct.pack("QqiI", key, 0, -error, flags))
        except Exception as error:
            self.failed = f"{type(error).__name__}: {error}"
            os.kill(self.process, signal.SIGKILL)  # it would wait for an answer
        finally:
            # Once this is closed, such calls fail in all processes that still run.
            os.close(listener)

    def _decide(self, tid: int, name: str, arguments: list[int]) -> tuple[int, int]:
        """Return the errno and flags of the answer to a call."""
        try:
            paths = _read_paths(tid, name, arguments)
        except OSError:  # a bad descriptor or a bad pointer, or the process is gone
            return 0, CONTINUE
        if not any(map(self._counts, paths)):
            return 0, CONTINUE
        made = Call(name=name, path=paths[-1])
        self.calls.append(made)
        stop = self._stop
        if stop is None or not stop.suits(made):
            return 0, CONTINUE
        self._passed += 1
        if self._passed != stop.number:
            return 0, CONTINUE
        self.stopped_at = made
        if stop.how in FAILURES:
            return FAILURES[stop.how], 0
        if stop.how != "before":
            with suppress(OSError):  # it would have failed there, too: a folder that exists
                _carry_out(tid, name, arguments, paths, torn=stop.how == "torn")
        # The caller may be git: the machine would have stopped both at this call.
        for pid in (self.process, _read_process(tid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return errno.EIO, 0


def fork(run: Callable[[], object]) -> int:
    """Run a function in a fork of this process, in a session of its own; return its number."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            run()
        finally:
            os._exit(1)
    return pid


def usable() -> bool:
    """Return whether calls can be watched here."""
    watch = CallWatch(lambda path: True)
    try:
        watch.start(lambda: None)
    except (OSError, AssertionError):
        return False
    os.waitpid(watch.process, 0)
    return watch.join(10) and not watch.failed


def _install_filter() -> int:
    """Have this process and all that it starts announce their durable calls; return where."""
    known = [each for name, each in _NUMBERS.items() if each is not None and name != "openat"]
    creates = os.O_CREAT | os.O_TRUNC
    # The last two instructions are the two answers: let it be made, announce it.
    code = [(LOAD, 0, 0, NUMBER_AT)]
    after = len(known) + 5
    code += [(JUMP_EQUAL, after - at - 1, 0, number) for at, number in enumerate(known, 1)]
    code += [
        (JUMP_EQUAL, 0, 2, _NUMBERS["openat"] or 0),
        (LOAD, 0, 0, ARGUMENTS_AT + 8 * 2),
        (JUMP_ANY_BIT, 1, 0, creates),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, NOTIFY),
    ]
    text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in code))
    header = struct.pack("HxxxxxxQ", len(code), ctypes.addressof(text))
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    flags = NEW_LISTENER | WAIT_KILLABLE_RECV
    return call("syscall", SYS_SECCOMP, SET_MODE_FILTER, flags, header)


def _read_paths(tid: int, name: str, arguments: list[int]) -> list[str]:
    """Return the absolute paths that a call is about.

    Raises:
        OSError: they cannot be read.
    """
    if name in BY_DESCRIPTOR:
        return [os.readlink(f"/proc/{tid}/fd/{_to_int(arguments[0])}")]
    paths = []
    for folder, at in BY_NAME[name]:
        path = os.fsdecode(_read_text(tid, arguments[at]))
        top = -100 if folder is None else _to_int(arguments[folder])
        base = f"/proc/{tid}/cwd" if top == -100 else f"/proc/{tid}/fd/{top}"
        path = path.replace("/proc/self/", f"/proc/{tid}/", 1)
        parent, last = os.path.split(os.path.join(os.readlink(base), path))
        paths.append(os.path.join(os.path.realpath(parent), last))
    return paths


def _carry_out(tid: int, name: str, arguments: list[int], paths: list[str], *, torn: bool) -> None:
    """Make a call for a process that waits in it; with `torn`, write the first half."""
    if name in BY_DESCRIPTOR:
        file = _take_descriptor(tid, _to_int(arguments[0]))
        try:
            _carry_out_by_descriptor(tid, name, arguments, file, torn=torn)
        finally:
            os.close(file)
        return
    first, last = paths[0], paths[-1]
    match name:
        case "mkdir":
            os.mkdir(last, arguments[1] & 0o700)
        case "mkdirat":
            os.mkdir(last, arguments[2] & 0o700)
        case "rename" | "renameat" | "renameat2":
            os.rename(first, last)
        case "link" | "linkat":
            os.link(first, last, follow_symlinks=False)
        case "symlink" | "symlinkat":
            os.symlink(os.fsdecode(_read_text(tid, arguments[0])), last)
        case "unlinkat" if _to_int(arguments[2]):
            os.rmdir(last)
        case "unlink" | "unlinkat":
            os.unlink(last)
        case "rmdir":
            os.rmdir(last)


def _carry_out_by_descriptor(
    tid: int, name: str, arguments: list[int], file: int, *, torn: bool
) -> None:
    if name == "ftruncate":
        os.ftruncate(file, arguments[1])
    elif name == "fsync":
        os.fsync(file)
    elif name == "fdatasync":
        os.fdatasync(file)
    else:
        if name == "writev":
            pieces = array.array("Q", _read_memory(tid, arguments[1], 16 * arguments[2]))
            data = b"".join(
                _read_memory(tid, pieces[at], pieces[at + 1]) for at in range(0, len(pieces), 2)
            )
        else:
            data = _read_memory(tid, arguments[1], arguments[2])
        data = data[: len(data) // 2] if torn else data
        if name == "pwrite64":
            os.pwrite(file, data, arguments[3])
        else:
            os.write(file, data)


def _take_descriptor(tid: int, number: int) -> int:
    """Return the same open file, with its offset and flags."""
    library: Any = ctypes.CDLL(None, use_errno=True)
    process = os.pidfd_open(_read_process(tid))
    try:
        got = int(library.syscall(_PIDFD_GETFD, process, number, 0))
    finally:
        os.close(process)
    if got < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return got


def _read_process(tid: int) -> int:
    for line in Path("/proc", str(tid), "status").read_text().splitlines():
        if line.startswith("Tgid:"):
            return int(line.split()[1])
    raise ProcessLookupError(tid)


def _read_memory(tid: int, at: int, size: int) -> bytes:
    with open(f"/proc/{tid}/mem", "rb", buffering=0) as memory:
        memory.seek(at)
        return memory.read(size)


def _read_text(tid: int, at: int) -> bytes:
    """Return a string that ends with NUL."""
    text = b""
    while b"\0" not in text:
        # Up to the end of a page: the next one may be missing.
        piece = _read_memory(tid, at + len(text), 4096 - (at + len(text)) % 4096)
        if not piece or len(text) > 8192:
            raise OSError(errno.EFAULT, "no string")
        text += piece
    return text.partition(b"\0")[0]


def _to_int(argument: int) -> int:
    return ctypes.c_int(argument & 0xFFFFFFFF).value
