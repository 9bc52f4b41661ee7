"""From a request to a child at its gate: namespaces first, then its order, then its boundary."""

from __future__ import annotations

import errno
import os

from retinue.child import kernel, sandbox
from retinue.child.attempt import Attempt
from retinue.child.command import explain
from retinue.child.containment import NoNamespaces, clone_into, show_own_processes
from retinue.child.control import Control
from retinue.child.order import Order, decode


def bear(control: Control) -> None:
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
        code = live(order, control)
    finally:
        os._exit(code)


def live(order: Order, control: Control) -> int:
    """The whole life of a child, as the first process of its namespaces; its exit code."""
    os.setsid()
    _keep_only(control)
    try:
        folder = os.open(order.runtime_folder, os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as fault:
        control.tell("-" + explain(fault, order.runtime_folder))
        return fault.errno or errno.EIO
    attempt = Attempt(order, control, folder)
    try:
        if order.sandbox is not None:
            sandbox.build(order.sandbox, order.runtime_folder)
            sandbox.limit(order.sandbox)
        elif order.contained:
            show_own_processes()
        else:
            kernel.call("prctl", kernel.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        # The command may not rewrite what will be recorded.
        kernel.call("prctl", kernel.PR_SET_DUMPABLE, 0, 0, 0, 0)
    except OSError as fault:
        return attempt.refuse(f"isolation failed: {explain(fault, b'sandbox')}")
    return attempt.run()


def _clone(order: Order) -> int:
    if not order.contained:
        return kernel.clone(kernel.CLONE_PARENT)
    return clone_into(order.sandbox.namespaces if order.sandbox else 0)


def _keep_only(control: Control) -> None:
    """No descriptor of whoever was before is left, but for the control and three empty ones."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    kept = {control.source, control.sink}
    for standard in (0, 1, 2):
        if standard not in kept:
            os.dup2(null, standard)
    below = 3
    for descriptor in sorted(kept - {0, 1, 2}):
        os.closerange(below, descriptor)
        below = descriptor + 1
    os.closerange(below, os.sysconf("SC_OPEN_MAX"))
