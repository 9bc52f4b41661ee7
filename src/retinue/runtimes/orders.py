"""An order of the supervisor's, as the program takes it that carries it out."""

from __future__ import annotations

import os

from retinue.child.order import Order
from retinue.domain.boundary import ISOLATED
from retinue.ports import LaunchOrder
from retinue.runtimes.view import limits_for, sandbox_for


def translated(order: LaunchOrder, contained: bool, *, stays: bool = False) -> Order:
    if not order.argv and not order.team:
        raise ValueError("the command is empty")
    sandbox = sandbox_for(order) if order.boundary.mode == ISOLATED else None
    environment = dict(order.environment)
    if sandbox is not None:
        environment |= {"HOME": "/tmp", "TMPDIR": "/tmp"}
        if sandbox.uid is not None:
            for path in sandbox.writable:
                os.chown(path, sandbox.uid, sandbox.uid, follow_symlinks=False)
    return Order(
        attempt=order.attempt,
        argv=tuple(map(os.fsencode, order.argv)),
        environment={os.fsencode(n): os.fsencode(value) for n, value in environment.items()},
        workspace=os.fsencode(order.workspace),
        runtime_folder=os.fsencode(order.runtime_folder),
        timeout_ms=order.timeout_ms,
        graces_ms=order.graces_ms,
        output_limit_bytes=order.output_limit_bytes,
        limits=limits_for(order.boundary),
        contained=contained,
        listens=order.listens,
        team=order.team,
        stays=stays,
        sandbox=sandbox,
    )
