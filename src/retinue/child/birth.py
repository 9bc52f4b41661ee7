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
from retinue.child.containment import NoNamespaces, clone_into, show_own_processes
from retinue.child.control import Control
from retinue.child.listening import Listener
from retinue.child.order import Order, decode


def bear(control: Control, alerts: Alerts, work: Work | None = None) -> None:
    """A child of our parent has the order and its boundary, and waits at its gate.

    Returns in the original once the child is on its way, or has been refused;
    in the child it never returns.
    """
    data = control.receive_order()
    if not data:
        return
    order = decode(data)
    try:
        pid = _clone(order)
    except NoNamespaces as why:
        control.tell(f"unavailable {why}\n")
        return
    except OSError as fault:
        control.tell(f"error {explain(fault, b'clone')}\n")
        return
    if pid:
        control.tell(f"pid {pid}\n")
        return
    code = errno.EIO
    try:
        code = live(order, control, alerts, work)
    finally:
        os._exit(code)


def bear_alone(control: Control, work: Work | None = None) -> int:
    """The same behind a launcher: this process stands for its child, and ends as it ended."""
    data = control.receive_order()
    if not data:
        return errno.EPIPE
    order = decode(data)
    alerts = Alerts()
    source, sink = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        pid = _clone(order, aside=0)
    except NoNamespaces as why:
        control.tell(f"unavailable {why}\n")
        return errno.EPERM
    except OSError as fault:
        control.tell(f"error {explain(fault, b'clone')}\n")
        return fault.errno or errno.EIO
    if pid == 0:
        os.close(sink)
        _die_with_parent(source)
        code = errno.EIO
        try:
            code = live(order, control, alerts, work)
        finally:
            os._exit(code)
    for number in HELD_BACK:
        signal.signal(number, lambda *_: os.kill(pid, signal.SIGTERM))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)
    control.tell(f"pid {os.getpid()}\n")
    control.close()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def live(order: Order, control: Control, alerts: Alerts, work: Work | None = None) -> int:
    """The whole life of a child, as the first process of its namespaces; its exit code."""
    with suppress(PermissionError):  # it leads one already
        os.setsid()
    os.umask(0o022)  # the steward's own is stricter, and not meant for what a command makes
    _keep_only(control)
    try:
        folder = os.open(order.runtime_folder, os.O_DIRECTORY | os.O_CLOEXEC)
        listener = Listener(folder) if order.listens else None
        attempt = Attempt(order, control, folder, alerts, listener, work)
    except OSError as fault:
        control.tell("-" + explain(fault, order.runtime_folder))
        return fault.errno or errno.EIO
    try:
        if order.sandbox is not None:
            sandbox.build(order.sandbox, order.runtime_folder)
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
    return attempt.run()


def _die_with_parent(sign_of_life: int) -> None:
    """Whenever our parent goes, so do we; it held the other end of a pipe until then."""
    kernel.call("prctl", kernel.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    with suppress(BlockingIOError):  # nothing to read, and someone who could still write
        os.read(sign_of_life, 1)
        os._exit(errno.EPIPE)  # it was gone before the kernel knew of our wish


def _clone(order: Order, aside: int = kernel.CLONE_PARENT) -> int:
    """As a child of our parent, or, with no flag, of our own."""
    if not order.contained:
        return kernel.clone(aside)
    return clone_into((order.sandbox.namespaces if order.sandbox else 0) | aside)


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
