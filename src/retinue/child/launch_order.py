"""Launch order of an attempt, as the steward sends it to an init."""

from __future__ import annotations

import marshal

from retinue.child.named_fields import Record
from retinue.child.namespaces import PROCESSES
from retinue.child.sandbox import Sandbox


class Order(Record):
    """One attempt's order. Arguments and paths are bytes, so that no locale changes them."""

    attempt: int
    argv: tuple[bytes, ...]
    environment: dict[bytes, bytes]
    workspace: bytes
    runtime_folder: bytes
    timeout_ms: int
    graces_ms: tuple[int, int]
    output_limit_bytes: int
    limits: dict[str, int]  # by kernel name, such as RLIMIT_DATA
    team: bool = False  # run a team in this interpreter instead of a command
    contained: bool  # in its own namespaces; else descendants are found in /proc
    listens: bool = False  # open a gateway socket on the loopback
    cgroup: str = ""  # folder of the cgroup for its processes
    # File with the time until which it may run: 8 bytes, little endian, ms of CLOCK_BOOTTIME.
    lease: bytes = b""
    sandbox: Sandbox | None = None  # of an isolated child; None: the steward's own rights
    views: tuple[tuple[str, str], ...] = ()  # without a sandbox: context places and their paths
    identities: tuple[tuple[str, tuple[int, int]], ...] = ()  # required device and inode of a path
    hidden: tuple[str, ...] = ()  # paths that are covered in views

    @property
    def namespaces(self) -> int:
        """Clone flags of the namespaces that the init is cloned into."""
        if not self.contained:
            return 0
        return PROCESSES | (self.sandbox.namespaces if self.sandbox is not None else 0)


def encode(order: Order) -> bytes:
    # marshal is the fastest format, and both ends are the same interpreter.
    sandbox = order.sandbox
    return marshal.dumps(vars(order) | {"sandbox": None if sandbox is None else vars(sandbox)})


def decode(data: bytes) -> Order:
    body = marshal.loads(data)
    if body["sandbox"] is not None:
        body["sandbox"] = Sandbox(**body["sandbox"])
    return Order(**body)
