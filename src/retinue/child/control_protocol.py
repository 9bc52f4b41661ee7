"""Control protocol between the steward and the init of an attempt, with its launch order.

child    one line: `pid N`; or `unavailable WHY` or `error WHY` if there is no child
steward  8 bytes of length and the order; then GO, or end of file if the steward is gone
child    EXECUTED, or `-WHY`; RECORDED once the attempt is over and exit.json is written

Before GO the steward may ask for the gateway socket that a child listens on. After RECORDED the
init exits: it never serves a second attempt.
"""

from __future__ import annotations

import marshal
import os
import select
import sys
from contextlib import suppress

from retinue.child.namespaces import OF_ISOLATED, PROCESSES
from retinue.child.syscalls import CLONE_NEWNET

# Records with named fields, without `dataclasses`.
#
# Each clone maps all memory of the fork server, and unmaps it when it exits. `dataclasses` and
# `typing` would be a quarter of that memory.

TYPE_CHECKING = False  # type checkers take it as true

if TYPE_CHECKING:
    from typing import dataclass_transform
else:

    def dataclass_transform(**_):
        return lambda decorated: decorated


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Record:
    """A frozen dataclass for type checkers; a missing field has its class attribute as default."""

    def __init__(self, **given: object) -> None:
        vars(self).update(given)


GO = b"g"
EXECUTED, RECORDED = "+", "."
STEP = 1 << 20


class Control(Record):
    """The child's end: a socket, or two pipes where a launcher stands in between."""

    source: int
    sink: int

    def receive(self, size: int) -> bytes:
        """Return so many bytes from the steward; fewer if it is gone."""
        data = bytearray()
        with suppress(OSError):  # a reset: the steward ended with our message unread
            while len(data) < size and (more := os.read(self.source, min(size - len(data), STEP))):
                data += more
        return bytes(data)

    def wait_readable(self, signal_source: int) -> bool:
        """Wait; return whether data or end of file can be read, and not only `alarm`."""
        either = select.poll()
        for descriptor in (self.source, signal_source):
            either.register(descriptor, select.POLLIN)
        return self.source in {descriptor for descriptor, _ in either.poll()}

    def receive_order(self) -> bytes:
        size = int.from_bytes(self.receive(8), sys.byteorder)
        data = self.receive(size)
        # A partial order means that the steward died: it counts as none.
        return data if len(data) == size else b""

    def tell(self, text: str) -> None:
        with suppress(OSError):  # the steward is gone; the next one reads the exit record
            os.write(self.sink, text.encode("utf-8", "replace"))

    def close(self) -> None:
        for descriptor in {self.source, self.sink}:
            with suppress(OSError):
                os.close(descriptor)


# Launch order of an attempt, as the steward sends it to an init.


class Order(Record):
    """One attempt's order for an init on this machine: resolved paths, limits by kernel names.

    It is not `LaunchOrder`, which may also go to another machine: with that, each process that
    starts a child would import 51 modules more (54 ms of CPU time and 5.1 MB), and this one needs
    the standard library only. Arguments and paths of the command are bytes, so that no locale
    changes them. Paths to mount are the host's, and are the same inside.
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
    # Folders with paths in them that are covered wherever links in the folder lead.
    masked: tuple[tuple[str, str], ...] = ()
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


def encode_order(order: Order) -> bytes:
    # marshal is the fastest format, and both ends are the same interpreter.
    return marshal.dumps(vars(order))


def decode_order(data: bytes) -> Order:
    return Order(**marshal.loads(data))
