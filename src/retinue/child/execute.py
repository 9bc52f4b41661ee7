"""Execution of a command or team in its workspace, in its own session, behind its boundary."""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping

from retinue.child import resource_limits, sandbox, syscalls
from retinue.child.control_protocol import Order
from retinue.child.resource_limits import Cgroup
from retinue.child.seccomp import RefusedCalls

DEFAULT_PATH = b"/usr/bin:/bin"
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
# Errors of exec that a retry would only repeat.
HOPELESS = (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.E2BIG)
MARK = b"!"  # precedes the message of such an error
CONFINED = b"="  # sent with the descriptor that announces refused calls
NOT_VISIBLE = (
    " among the system's programs, in its workspace and in what it was given to read;"
    " name one that is elsewhere in full, without links on the way, and add --context-path;"
    " for your own Python or virtual environment, add --with-python"
)

Work = Callable[[Mapping[str, str]], int]  # runs a team in an environment; returns its exit code
Streams = tuple[int, int, int]  # descriptors of standard input, output and error


class CannotExecute(Exception):
    """The command was not executed; the message names the errno."""

    def __init__(self, why: str, *, hopeless: bool = False) -> None:
        super().__init__(why)
        self.hopeless = hopeless  # a retry would fail in the same way


def describe_error(fault: OSError | ValueError, name: bytes) -> str:
    """Return a text such as `ENOENT: no such file or directory: 'nope'`.

    For an existing script the missing interpreter is named.
    """
    code = getattr(fault, "errno", None) or errno.EINVAL
    said = (fault.strerror or "") if isinstance(fault, OSError) else str(fault)
    runs = _read_shebang(name) if code == errno.ENOENT and b"/" in name else b""
    shown = (
        f"{_quote_path(runs)}, which is to run {_quote_path(name)}" if runs else _quote_path(name)
    )
    return f"{errno.errorcode.get(code, code)}: {said[:1].lower()}{said[1:]}: {shown}"


def _quote_path(name: bytes) -> str:
    return repr(name[:200].decode("utf-8", "replace"))


def _read_shebang(path: bytes) -> bytes:
    """Return the interpreter that the first line of a script names; empty if it is no script."""
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


def execute(
    order: Order, streams: Streams, work: Work | None, cgroup: Cgroup | None = None
) -> tuple[int, RefusedCalls | None]:
    """Start the command or team; return its pid and, for an isolated one, its refused calls.

    Changes the working folder of this process to the workspace.

    Args:
        streams: its standard input, output and error; an input of -1 is empty.

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
        # posix_spawn is fastest, but the command then inherits the limits of this process. So
        # they are set here, if this process can work within them itself.
        ample = resource_limits.can_hold_limits(order.limits, order.output_limit_bytes)
        if not order.isolated and ample and not order.team:
            subject = order.argv[0]
            return _spawn_command(order, streams), None
    except (OSError, ValueError) as fault:
        hopeless = subject is not order.workspace and _is_hopeless(fault)
        raise CannotExecute(describe_error(fault, subject), hopeless=hopeless) from fault
    return _fork_command(order, streams, work if order.team else None, cgroup)


def _spawn_command(order: Order, streams: Streams) -> int:
    """Start the command with posix_spawn, without copying this process.

    Raises:
        OSError, ValueError: the command cannot be executed.
    """
    path = _find_program(order.argv[0], order.environment.get(b"PATH", DEFAULT_PATH))
    resource_limits.apply_limits(order.limits, others=0)
    stdin, stdout, stderr = streams
    nothing = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    actions = (
        nothing if stdin < 0 else (os.POSIX_SPAWN_DUP2, stdin, 0),
        (os.POSIX_SPAWN_DUP2, stdout, 1),
        (os.POSIX_SPAWN_DUP2, stderr, 2),
    )
    return os.posix_spawn(
        path,
        order.argv,
        order.environment,
        file_actions=actions,
        setsid=True,
        setsigmask=(),
        setsigdef=IGNORED_BY_PYTHON,
    )


def _fork_command(
    order: Order, streams: Streams, work: Work | None, cgroup: Cgroup | None
) -> tuple[int, RefusedCalls | None]:
    """Fork a copy of this process, which confines itself and then executes the command.

    Raises:
        CannotExecute: the copy reported why it could not.
    """
    source, sink = socket.socketpair()
    pid = os.fork() if cgroup is None else _fork_into(cgroup)
    if pid == 0:
        _exec_command(order, streams, sink, work)
    sink.close()
    refused: RefusedCalls | None = None
    said, listeners, _, _ = socket.recv_fds(source, 4096, 1, socket.MSG_CMSG_CLOEXEC)
    for listener in listeners:
        refused = RefusedCalls(listener)
    said = said.removeprefix(CONFINED)
    # exec closes the copy's end: end of file without a message is success.
    while more := source.recv(4096):
        said += more
    source.close()
    if said:
        if refused is not None:
            refused.close()
        os.waitpid(pid, 0)
        why = said.removeprefix(MARK).decode("utf-8", "replace")
        raise CannotExecute(why, hopeless=said.startswith(MARK))
    return pid, refused


def _fork_into(cgroup: Cgroup) -> int:
    """Fork into the cgroup; without it if the kernel refuses."""
    try:
        return syscalls.clone(0, cgroup.descriptor)
    except OSError:
        return os.fork()


def _exec_command(order: Order, streams: Streams, sink: socket.socket, work: Work | None) -> None:
    """Become the command, or report why not and exit; never returns."""
    subject, found = b"sandbox", False
    try:
        os.setsid()
        stdin, stdout, stderr = streams
        given = os.open(os.devnull, os.O_RDONLY) if stdin < 0 else stdin
        for source, target in ((given, 0), (stdout, 1), (stderr, 2)):
            os.dup2(source, target)
        _reset_signals()
        if order.isolated:
            _give_to_user((stdout, stderr), order.uid)
            listener = sandbox.confine(order)
            socket.send_fds(sink, [CONFINED], [listener])
            os.close(listener)
        path = b""
        if work is None:
            subject = order.argv[0]
            found = True
            path = _find_program(subject, order.environment.get(b"PATH", DEFAULT_PATH))
        # Last, so that the limits do not stop the steps above. If the command has no user of its
        # own, the init counts as a process of the same user.
        others = 1 if order.uid is None else 0
        resource_limits.apply_limits(order.limits, others=others, isolated=order.isolated)
        if work is not None:
            os._exit(_run_team(work, order))
        os.execve(path, order.argv, order.environment)
    except (OSError, ValueError) as fault:
        mark = MARK if found and _is_hopeless(fault) else b""
        unseen = mark and order.isolated and getattr(fault, "errno", 0) == errno.ENOENT
        why = describe_error(fault, subject) + (NOT_VISIBLE if unseen else "")
        sink.send(mark + why.encode("utf-8", "replace"))
    except MemoryError:
        sink.send(b"ENOMEM: its memory limit is too low to start anything")
    finally:
        os._exit(127)


def _give_to_user(pipes: tuple[int, ...], uid: int | None) -> None:
    """Make the child's user the owner of the pipes: no other user can open /dev/stdout."""
    if uid is not None:
        for pipe in pipes:
            os.fchown(pipe, uid, uid)


def _run_team(work: Work, order: Order) -> int:
    """Run a team and return its exit code; an exception is printed on its standard error."""
    environment = {os.fsdecode(name): os.fsdecode(v) for name, v in order.environment.items()}
    os.environ.clear()
    os.environ.update(environment)
    # A team does not exec, so the descriptors of its init have to be closed here. That also
    # tells the init that the team runs.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
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
    """Restore the default signal handling; exec itself resets signals that have a handler."""
    for number in IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _find_program(name: bytes, path: bytes) -> bytes:
    """Find a command in its own PATH, as a shell does."""
    places = [] if b"/" in name else [folder + b"/" + name for folder in path.split(b":") if folder]
    existing = [place for place in places if os.access(place, os.F_OK)]
    files = [place for place in existing if not os.path.isdir(place)]
    usable = [place for place in files if os.access(place, os.X_OK)]
    return (usable or existing or [name])[0]
