"""From a request to a child at its gate: namespaces first, then its order, then its boundary."""

from __future__ import annotations

import errno
import os
import signal
from contextlib import suppress

from retinue.child import kernel, sandbox
from retinue.child.alerts import HELD_BACK, Alerts
from retinue.child.attempt import Attempt
from retinue.child.command import Work, explain
from retinue.child.containment import PROCESSES, NoNamespaces, clone_into, show_own_processes
from retinue.child.control import FREE, Control
from retinue.child.listening import Listener
from retinue.child.order import Order, decode
from retinue.child.staying import Surroundings


def bear(control: Control, namespaces: int, alerts: Alerts, work: Work | None) -> None:
    """A child of our parent is in these namespaces, and waits for its order.

    Returns in the original once the child is on its way, or has been refused;
    in the child it never returns.
    """
    pid = _clone(control, namespaces | kernel.CLONE_PARENT)
    if pid == 0:
        _live_and_die(control, namespaces, alerts, work)
    if pid is not None:
        control.tell(f"pid {pid}\n")


def bear_alone(control: Control, work: Work | None) -> int:
    """The same behind a launcher: this process stands for its child, and ends as it ended."""
    data = control.receive_order()
    if not data:
        return errno.EPIPE
    alerts = Alerts()
    source, sink = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    namespaces = decode(data).namespaces
    pid = _clone(control, namespaces)
    if pid is None:
        return errno.EPERM
    if pid == 0:
        os.close(sink)
        _die_with_parent(source)
        _live_and_die(control, namespaces, alerts, work, data)
    for number in HELD_BACK:
        signal.signal(number, lambda *_: os.kill(pid, signal.SIGTERM))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)
    control.tell(f"pid {os.getpid()}\n")
    control.close()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _clone(control: Control, flags: int) -> int | None:
    """The number of a clone, or 0 in it; None when there is none, and the steward knows why."""
    try:
        return clone_into(flags) if flags & PROCESSES else kernel.clone(flags)
    except NoNamespaces as why:
        control.tell(f"unavailable {why}\n")
    except OSError as fault:
        control.tell(f"error {explain(fault, b'clone')}\n")
    return None


def _live_and_die(
    control: Control, namespaces: int, alerts: Alerts, work: Work | None, data: bytes = b""
) -> None:
    """Nobody returns from here."""
    code = errno.EIO
    try:
        code = live(control, namespaces, alerts, work, data)
    finally:
        os._exit(code)


def live(control: Control, namespaces: int, alerts: Alerts, work: Work | None, data: bytes) -> int:
    """The whole life of a child, as the first process of its namespaces; its exit code.

    Args:
        data: its order, where that has been received already.
    """
    with suppress(PermissionError):  # it leads one already
        os.setsid()
    os.umask(0o022)  # the steward's own is stricter, and not meant for what a command makes
    _keep_only(control)
    ground = _laid(namespaces)
    data = data or _awaited(control, alerts)
    if not data:
        return 0
    order = decode(data)
    try:
        folder = os.open(order.runtime_folder, os.O_DIRECTORY | os.O_CLOEXEC)
        listener = Listener(folder) if order.listens else None
        attempt = Attempt(order, control, folder, alerts, listener, work)
    except OSError as fault:
        return _unable(control, order, fault)
    try:
        if order.sandbox is not None:
            sandbox.build(order.sandbox, ground or sandbox.lay_ground())
        elif order.contained:
            show_own_processes()
        else:
            kernel.call("prctl", kernel.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        # The command may not rewrite what will be recorded.
        kernel.call("prctl", kernel.PR_SET_DUMPABLE, 0, 0, 0, 0)
        if listener is not None and not listener.open(order, control):
            return attempt.give_up()
    except OSError as fault:
        place = os.fsencode(fault.filename or "sandbox")
        return attempt.refuse(f"isolation failed: {explain(fault, place)}")
    return _stay(attempt, control, alerts) if order.stays else _leave(attempt, control)


def _laid(namespaces: int) -> str:
    """The ground of an isolated child, before its order comes; which meets again what fails."""
    with suppress(OSError):
        return sandbox.lay_ground() if namespaces & sandbox.OF_ISOLATED else ""
    return ""


def _leave(attempt: Attempt, control: Control) -> int:
    """One attempt; whoever waits for its end need not wait until we are gone, too."""
    code = attempt.run()
    if attempt.executed and not code:
        control.tell(FREE)
    return code


def _stay(attempt: Attempt, control: Control, alerts: Alerts) -> int:
    """One attempt after another, for as long as nothing is left of the last."""
    try:
        surroundings = Surroundings()
    except OSError:  # then nobody could tell
        return attempt.run()
    while True:
        code = attempt.run()
        if not (attempt.completed and surroundings.unchanged()):
            return code
        control.tell(FREE)
        attempt.let_go()
        data = _awaited(control, alerts)
        if not data:
            return 0
        order = decode(data)
        try:
            folder = os.open(order.runtime_folder, os.O_DIRECTORY | os.O_CLOEXEC)
            attempt = Attempt(order, control, folder, alerts)
        except OSError as fault:
            return _unable(control, order, fault)


def _awaited(control: Control, alerts: Alerts) -> bytes:
    """The next order; empty when nobody is there to give one, or we are asked to go."""
    while not control.ready(alerts.open()):
        alerts.hear()
        if alerts.stop_asked:
            return b""
    return control.receive_order()


def _unable(control: Control, order: Order, fault: OSError) -> int:
    control.tell("-" + explain(fault, order.runtime_folder))
    return fault.errno or errno.EIO


def _die_with_parent(sign_of_life: int) -> None:
    """Whenever our parent goes, so do we; it held the other end of a pipe until then."""
    kernel.call("prctl", kernel.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    with suppress(BlockingIOError):  # nothing to read, and someone who could still write
        os.read(sign_of_life, 1)
        os._exit(errno.EPIPE)  # it was gone before the kernel knew of our wish


def _keep_only(control: Control) -> None:
    """No descriptor of whoever was before is left, but for the control and three empty ones."""
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
