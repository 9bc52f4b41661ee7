"""Launch order of an attempt, as the steward sends it to an init."""

from __future__ import annotations

import marshal

from retinue.child.named_fields import Record
from retinue.child.namespaces import OF_ISOLATED, PROCESSES
from retinue.child.syscalls import CLONE_NEWNET


class Order(Record):
    """One attempt's order.

    Arguments and paths of the command are bytes, so that no locale changes them. Paths to mount
    are the host's, and are the same inside.
    """

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
    # Texts never written to its logs, longest first, and what stands there instead.
    redacted: tuple[tuple[bytes, bytes], ...] = ()
    stdin: bytes = b""  # file of its standard input; empty: /dev/null

    # Context paths, with and without isolation.
    views: tuple[tuple[str, str], ...] = ()  # places, each with the path that is visible there
    hidden: tuple[str, ...] = ()  # covered wherever they lie within lent paths and views
    # Required device and inode of lent paths and of those in views.
    identities: tuple[tuple[str, tuple[int, int]], ...] = ()

    # The boundary of an isolated child; others have the steward's own rights.
    isolated: bool = False
    readable: tuple[str, ...] = ()  # mounted read-only, beside the system folders
    writable: tuple[str, ...] = ()  # mounted read-write
    lent: tuple[str, ...] = ()  # the parent's paths, mounted read-only as if the child owned them
    # Owner and group whose files a lent path shows as the child's; by default those of its top.
    owners: tuple[tuple[str, tuple[int, int]], ...] = ()
    network: str = "off"  # or models, on
    uid: int | None = None  # of the command; None: the steward's
    layered: str = ""  # the path, normally a writable one, that is an overlay
    below: tuple[str, ...] = ()  # its lower folders, uppermost first
    work: str = ""  # its work folder

    @property
    def namespaces(self) -> int:
        """Clone flags of the namespaces that the init is cloned into."""
        if not self.contained:
            return 0
        if not self.isolated:
            return PROCESSES
        return PROCESSES | OF_ISOLATED | (0 if self.network == "on" else CLONE_NEWNET)


def encode(order: Order) -> bytes:
    # marshal is the fastest format, and both ends are the same interpreter.
    return marshal.dumps(vars(order))


def decode(data: bytes) -> Order:
    return Order(**marshal.loads(data))
