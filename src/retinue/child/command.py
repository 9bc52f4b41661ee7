"""Executing a command: in its workspace, in its own session, behind its boundary."""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping

from retinue.child import limits, sandbox
from retinue.child.order import Order

DEFAULT_PATH = b"/usr/bin:/bin"
STANDARD = ((0, "r"), (1, "w"), (2, "w"))

Work = Callable[[Mapping[str, str]], int]  # a team's, by its environment; the exit code


class CannotExecute(Exception):
    """The command was not executed; the message names the errno."""


def explain(fault: OSError | ValueError, name: bytes) -> str:
    """`ENOENT: no such file or directory: 'nope'`."""
    code = getattr(fault, "errno", None) or errno.EINVAL
    said = (fault.strerror or "") if isinstance(fault, OSError) else str(fault)
    shown = name[:200].decode("utf-8", "replace")
    return f"{errno.errorcode.get(code, code)}: {said[:1].lower()}{said[1:]}: {shown!r}"


def execute(order: Order, stdout: int, stderr: int, work: Work | None = None) -> int:
    """The number of the process that executes the command, or does the work of a team.

    Raises:
        CannotExecute: there is no such process.
    """
    if order.team and work is None:
        raise CannotExecute("EINVAL: this program has no team")
    if not order.argv and not order.team:
        raise CannotExecute("EINVAL: the command is empty")
    source, sink = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _become(order, stdout, stderr, sink, work if order.team else None)
    os.close(sink)
    said = b""
    while more := os.read(source, 4096):
        said += more
    os.close(source)
    if said:
        os.waitpid(pid, 0)
        raise CannotExecute(said.decode("utf-8", "replace"))
    return pid


def _become(order: Order, stdout: int, stderr: int, sink: int, work: Work | None) -> None:
    """Never returns: this process is the command, or has told why not and is gone."""
    subject = order.workspace
    try:
        os.setsid()
        null = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((null, 0), (stdout, 1), (stderr, 2)):
            os.dup2(source, target)
        os.chdir(order.workspace)
        _reset_signals()
        subject = b"sandbox"
        if order.sandbox is not None:
            sandbox.confine(order.sandbox)
        path = b""
        if work is None:
            subject = order.argv[0]
            path = _find(subject, order.environment.get(b"PATH", DEFAULT_PATH))
        # Last, because they are the command's and not ours; init is one of its user's processes
        # where it has no user of its own.
        alone = order.sandbox is not None and order.sandbox.uid is not None
        limits.impose(order.limits, others=0 if alone else 1)
        if work is not None:
            os._exit(_worked(work, order, sink))
        os.execve(path, order.argv, order.environment)
    except (OSError, ValueError) as fault:
        os.write(sink, explain(fault, subject).encode("utf-8", "replace"))
    except MemoryError:
        os.write(sink, b"ENOMEM: its memory limit is too low to start anything")
    finally:
        os._exit(127)


def _worked(work: Work, order: Order, sink: int) -> int:
    """The exit code of a team's work; whatever breaks it is told on its standard error."""
    environment = {os.fsdecode(name): os.fsdecode(v) for name, v in order.environment.items()}
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode) for number, mode in STANDARD)
    os.close(sink)  # it runs
    try:
        return work(environment)
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _reset_signals() -> None:
    """As a command expects them. What is caught here ends with this program by itself."""
    for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored_by_python, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _find(name: bytes, path: bytes) -> bytes:
    """Where a command is, in the folders of its own PATH, as a shell would look for it."""
    places = [] if b"/" in name else [folder + b"/" + name for folder in path.split(b":") if folder]
    existing = [place for place in places if os.access(place, os.F_OK)]
    files = [place for place in existing if not os.path.isdir(place)]
    usable = [place for place in files if os.access(place, os.X_OK)]
    return (usable or existing or [name])[0]
