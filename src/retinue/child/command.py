"""Executing a command: in its workspace, in its own session, behind its boundary."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Mapping

from retinue.child import limits, sandbox
from retinue.child.order import Order

DEFAULT_PATH = b"/usr/bin:/bin"
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
# Errors of executing a program that the next try would only repeat.
HOPELESS = (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.E2BIG)
MARK = b"!"  # before what is told of a hopeless one
UNSEEN = (
    " among the system's programs, in its workspace and in what it was given to read;"
    " name one that is elsewhere in full, without links on the way, and add --context-path"
)

Work = Callable[[Mapping[str, str]], int]  # a team's, by its environment; the exit code


class CannotExecute(Exception):
    """The command was not executed; the message names the errno."""

    def __init__(self, why: str, *, hopeless: bool = False) -> None:
        super().__init__(why)
        self.hopeless = hopeless  # the next try would end the same way


def explain(fault: OSError | ValueError, name: bytes) -> str:
    """`ENOENT: no such file or directory: 'nope'`; of a script that is there, the program that
    is to run it.
    """
    code = getattr(fault, "errno", None) or errno.EINVAL
    said = (fault.strerror or "") if isinstance(fault, OSError) else str(fault)
    runs = _interpreter(name) if code == errno.ENOENT and b"/" in name else b""
    shown = f"{_shown(runs)}, which is to run {_shown(name)}" if runs else _shown(name)
    return f"{errno.errorcode.get(code, code)}: {said[:1].lower()}{said[1:]}: {shown}"


def _shown(name: bytes) -> str:
    return repr(name[:200].decode("utf-8", "replace"))


def _interpreter(path: bytes) -> bytes:
    """What the first line of a script names, or nothing where there is no script."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        mark, _, line = os.read(descriptor, 256).partition(b"\n")[0].partition(b"#!")
    except OSError:
        return b""
    finally:
        os.close(descriptor)
    named = line.lstrip(b" \t").replace(b"\t", b" ").partition(b" ")[0]
    return b"" if mark else named


def execute(order: Order, stdout: int, stderr: int, work: Work | None) -> int:
    """The number of the process that executes the command, or does the work of a team, in whose
    workspace we are from now on.

    Raises:
        CannotExecute: there is no such process.
    """
    if order.team and work is None:
        raise CannotExecute("EINVAL: this program has no team")
    if not order.argv and not order.team:
        raise CannotExecute("EINVAL: the command is empty")
    subject = order.workspace
    try:
        os.chdir(order.workspace)
        ample = limits.bearable(order.limits, order.output_limit_bytes)
        if order.sandbox is None and ample and not order.team:
            subject = order.argv[0]
            return _start(order, stdout, stderr)
    except (OSError, ValueError) as fault:
        hopeless = subject is not order.workspace and _is_hopeless(fault)
        raise CannotExecute(explain(fault, subject), hopeless=hopeless) from fault
    return _fork(order, stdout, stderr, work if order.team else None)


def _start(order: Order, stdout: int, stderr: int) -> int:
    """Without copying this process: what the command gets differs from what we have in nothing
    but its session and its streams.

    Raises:
        OSError, ValueError: it cannot be executed.
    """
    path = _find(order.argv[0], order.environment.get(b"PATH", DEFAULT_PATH))
    limits.impose(order.limits, others=0)
    streams = ((os.POSIX_SPAWN_DUP2, stdout, 1), (os.POSIX_SPAWN_DUP2, stderr, 2))
    return os.posix_spawn(
        path,
        order.argv,
        order.environment,
        file_actions=((os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), *streams),
        setsid=True,
        setsigmask=(),
        setsigdef=IGNORED_BY_PYTHON,
    )


def _fork(order: Order, stdout: int, stderr: int, work: Work | None) -> int:
    """As a copy of this process, which puts up its own boundary before it executes anything.

    Raises:
        CannotExecute: it told why not.
    """
    source, sink = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _become(order, stdout, stderr, sink, work)
    os.close(sink)
    said = b""
    while more := os.read(source, 4096):
        said += more
    os.close(source)
    if said:
        os.waitpid(pid, 0)
        why = said.removeprefix(MARK).decode("utf-8", "replace")
        raise CannotExecute(why, hopeless=said.startswith(MARK))
    return pid


def _become(order: Order, stdout: int, stderr: int, sink: int, work: Work | None) -> None:
    """Never returns: this process is the command, or has told why not and is gone."""
    subject, found = b"sandbox", False
    try:
        os.setsid()
        null = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((null, 0), (stdout, 1), (stderr, 2)):
            os.dup2(source, target)
        _reset_signals()
        if order.sandbox is not None:
            _give((stdout, stderr), order.sandbox.uid)
            sandbox.confine(order.sandbox)
        path = b""
        if work is None:
            subject, found = order.argv[0], True
            path = _find(subject, order.environment.get(b"PATH", DEFAULT_PATH))
        # Last, because they are the command's and not ours; init is one of its user's processes
        # where it has no user of its own.
        alone = order.sandbox is not None and order.sandbox.uid is not None
        limits.impose(order.limits, others=0 if alone else 1)
        if work is not None:
            os._exit(_worked(work, order))
        os.execve(path, order.argv, order.environment)
    except (OSError, ValueError) as fault:
        mark = MARK if found and _is_hopeless(fault) else b""
        unseen = mark and order.sandbox is not None and getattr(fault, "errno", 0) == errno.ENOENT
        why = explain(fault, subject) + (UNSEEN if unseen else "")
        os.write(sink, mark + why.encode("utf-8", "replace"))
    except MemoryError:
        os.write(sink, b"ENOMEM: its memory limit is too low to start anything")
    finally:
        os._exit(127)


def _give(pipes: tuple[int, ...], uid: int | None) -> None:
    """They are the command's own: only who owns a pipe can open it by name, as /dev/stdout."""
    if uid is not None:
        for pipe in pipes:
            os.fchown(pipe, uid, uid)


def _worked(work: Work, order: Order) -> int:
    """The exit code of a team's work; whatever breaks it is told on its standard error."""
    environment = {os.fsdecode(name): os.fsdecode(v) for name, v in order.environment.items()}
    os.environ.clear()
    os.environ.update(environment)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # it runs, and holds nothing of its init's
    try:
        return work(environment)
    except Exception as fault:
        sys.__excepthook__(type(fault), fault, fault.__traceback__)
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _is_hopeless(fault: OSError | ValueError) -> bool:
    return not isinstance(fault, OSError) or fault.errno in HOPELESS


def _reset_signals() -> None:
    """As a command expects them. What is caught here ends with this program by itself."""
    for number in IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _find(name: bytes, path: bytes) -> bytes:
    """Where a command is, in the folders of its own PATH, as a shell would look for it."""
    places = [] if b"/" in name else [folder + b"/" + name for folder in path.split(b":") if folder]
    existing = [place for place in places if os.access(place, os.F_OK)]
    files = [place for place in existing if not os.path.isdir(place)]
    usable = [place for place in files if os.access(place, os.X_OK)]
    return (usable or existing or [name])[0]
