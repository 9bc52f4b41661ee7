"""What the steward wants run, on its way to the process that will run it."""

from __future__ import annotations

import marshal

from retinue.child.containment import PROCESSES
from retinue.child.limits import bearable
from retinue.child.record import Record
from retinue.child.sandbox import Sandbox


class Order(Record):
    """Words and paths are bytes, as the kernel takes them: no locale comes in between."""

    attempt: int
    argv: tuple[bytes, ...]
    environment: dict[bytes, bytes]
    workspace: bytes
    runtime_folder: bytes
    timeout_ms: int
    graces_ms: tuple[int, int]
    output_limit_bytes: int
    limits: dict[str, int]  # by the names of the kernel's
    team: bool = False  # a team works in this very program, instead of a command
    contained: bool  # in namespaces of its own; else found again by scanning
    listens: bool = False  # for its gateway, on a loopback of its own
    stays: bool = False  # whoever carried it out waits for another, if nothing is left of it
    sandbox: Sandbox | None = None  # behind a boundary of its own; else with our own rights

    @property
    def footing(self) -> tuple[dict[str, int], bool]:
        """What whoever carried it out is left with: its limits, and whether they are its own."""
        return self.limits, bearable(self.limits, self.output_limit_bytes)

    @property
    def namespaces(self) -> int:
        """What whoever carries it out is cloned into."""
        if not self.contained:
            return 0
        return PROCESSES | (self.sandbox.namespaces if self.sandbox is not None else 0)


def encode(order: Order) -> bytes:
    """Both ends are the same release of the same interpreter."""
    sandbox = order.sandbox
    return marshal.dumps(vars(order) | {"sandbox": None if sandbox is None else vars(sandbox)})


def decode(data: bytes) -> Order:
    body = marshal.loads(data)
    if body["sandbox"] is not None:
        body["sandbox"] = Sandbox(**body["sandbox"])
    return Order(**body)
