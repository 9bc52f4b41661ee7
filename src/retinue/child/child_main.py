"""Main program of a child's init: enter namespaces, receive the order, set limits, run it."""

from __future__ import annotations

import errno
import os
import signal
from contextlib import suppress

from retinue.child import context_mounts, sandbox, syscalls
from retinue.child.attempt_runner import AttemptRunner
from retinue.child.context_mounts import copy_or_link
from retinue.child.control_protocol import RECORDED, Control, Order, decode_order
from retinue.child.execute import Work, describe_error
from retinue.child.gateway_socket import Listener
from retinue.child.namespaces import (
    OF_ISOLATED,
    PROCESSES,
    NoNamespaces,
    clone_into,
    explain_refused_mount,
    show_own_processes,
)
from retinue.child.pending_signals import HELD_BACK, PendingSignals
from retinue.child.resource_limits import Cgroup


def start_child(
    control: Control, namespaces: int, signals: PendingSignals, work: Work | None
) -> None:
    """Clone an init into these namespaces, and tell the steward its pid.

    Returns in the fork server, also if the clone failed; never returns in the clone.
    """
    # The clone becomes a child of the steward, which is to reap it.
    pid = _clone(control, namespaces | syscalls.CLONE_PARENT)
    if pid == 0:
        _run_and_exit(control, namespaces, signals, work)
    if pid is not None:
        control.tell(f"pid {pid}\n")


def start_child_behind_launcher(control: Control, work: Work | None) -> int:
    """Clone an init from a process behind a launcher, wait for it, and return its exit code.

    The init cannot be the steward's child here, so this process passes signals on to it.
    """
    data = control.receive_order()
    if not data:
        return errno.EPIPE
    signals = PendingSignals()
    source, sink = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    namespaces = decode_order(data).namespaces
    pid = _clone(control, namespaces)
    if pid is None:
        return errno.EPERM
    if pid == 0:
        os.close(sink)
        _exit_with_parent(source)
        _run_and_exit(control, namespaces, signals, work, data)
    # Handlers first, then unblock: a signal that came meanwhile is passed on, too.
    for number in HELD_BACK:
        signal.signal(number, lambda *_: os.kill(pid, signal.SIGTERM))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)
    control.tell(f"pid {os.getpid()}\n")
    control.close()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _clone(control: Control, flags: int) -> int | None:
    """Return the pid of a clone, or 0 in it; on failure tell the steward why and return None."""
    try:
        return clone_into(flags) if flags & PROCESSES else syscalls.clone(flags)
    except NoNamespaces as why:
        control.tell(f"unavailable {why}\n")
    except OSError as fault:
        control.tell(f"error {describe_error(fault, b'clone')}\n")
    return None


def _run_and_exit(
    control: Control, namespaces: int, signals: PendingSignals, work: Work | None, data: bytes = b""
) -> None:
    """Run a child and exit; never returns, so that the clone never runs the server's code."""
    code = errno.EIO
    try:
        code = run_child(control, namespaces, signals, work, data)
    finally:
        os._exit(code)


def run_child(
    control: Control, namespaces: int, signals: PendingSignals, work: Work | None, data: bytes
) -> int:
    """Run a child as the init of its namespaces, and return its exit code.

    Args:
        data: the order, if it was received already.
    """
    with suppress(PermissionError):  # it is a session leader already
        os.setsid()
    # The steward's umask is stricter, and not meant for files that a command makes.
    os.umask(0o022)
    _keep_only(control)
    # An init may be made before there is an order: all that needs none is prepared already.
    root = _prepare(namespaces)
    data = data or _receive_order(control, signals)
    if not data:
        return 0
    order = decode_order(data)
    # All that lies in the runtime folder is opened before the boundary hides it.
    try:
        folder = os.open(order.runtime_folder, os.O_DIRECTORY | os.O_CLOEXEC)
        listener = Listener(folder) if order.listens else None
        attempt = AttemptRunner(order, control, folder, signals, listener, work, _cgroup(order))
    except OSError as fault:
        return _report_failure(control, order, fault)
    try:
        if order.isolated:
            sandbox.build(order, root or sandbox.prepare_root())
        elif order.contained:
            context_mounts.show(order.views, dict(order.identities), order.hidden)
        else:
            copy_or_link(order.views, order.hidden)
            syscalls.call("prctl", syscalls.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        # Not dumpable: the command must not read or change the memory of its init.
        syscalls.call("prctl", syscalls.PR_SET_DUMPABLE, 0, 0, 0, 0)
        if listener is not None and not listener.open(order, control):
            return attempt.record_never_ran()
    except OSError as fault:
        place = os.fsencode(fault.filename or "sandbox")
        advice = explain_refused_mount(fault.errno or 0)
        why = describe_error(fault, place) + (f" ({advice})" if advice else "")
        return attempt.refuse(f"isolation failed: {why}")
    code = attempt.run()
    # The steward need not wait until the kernel has taken down the namespaces.
    if attempt.executed and not code:
        control.tell(RECORDED)
    return code


def _cgroup(order: Order) -> Cgroup | None:
    """Open the cgroup before the boundary hides it; without one, limits apply to each process."""
    with suppress(OSError):
        return Cgroup(order.cgroup) if order.cgroup else None
    return None


def _prepare(namespaces: int) -> str:
    """Mount what all children with these namespaces share; return the folder of a sandbox."""
    if namespaces & OF_ISOLATED:
        with suppress(OSError):  # the failure shows again when the sandbox is built
            return sandbox.prepare_root()
    elif namespaces:
        show_own_processes()
    return ""


def _receive_order(control: Control, signals: PendingSignals) -> bytes:
    """Wait for the order; empty if the steward is gone, or asks this process to exit."""
    while not control.wait_readable(signals.open()):
        signals.read_pending()
        if signals.stop_asked:
            return b""
    return control.receive_order()


def _report_failure(control: Control, order: Order, fault: OSError) -> int:
    control.tell("-" + describe_error(fault, order.runtime_folder))
    return fault.errno or errno.EIO


def _exit_with_parent(sign_of_life: int) -> None:
    """Have the kernel kill this process when its parent exits.

    The parent holds the other end of the pipe `sign_of_life`.
    """
    syscalls.call("prctl", syscalls.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The parent may have exited before the call above: then the pipe is at its end.
    with suppress(BlockingIOError):
        os.read(sign_of_life, 1)
        os._exit(errno.EPIPE)


def _keep_only(control: Control) -> None:
    """Close all descriptors but the control socket; connect standard streams to /dev/null."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    kept = {control.source, control.sink}
    for descriptor in kept:
        os.set_inheritable(descriptor, False)
    for standard in (0, 1, 2):
        if standard not in kept:
            os.dup2(null, standard)
    below = 3
    for descriptor in sorted(kept - {0, 1, 2}):
        os.closerange(below, descriptor)
        below = descriptor + 1
    os.closerange(below, os.sysconf("SC_OPEN_MAX"))
