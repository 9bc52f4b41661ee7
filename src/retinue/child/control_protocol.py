"""Control protocol between the steward and the init of an attempt.

child    one line: `pid N`; or `unavailable WHY` or `error WHY` if there is no child
steward  8 bytes of length and the order; then GO, or end of file if the steward is gone
child    EXECUTED, or `-WHY`; FREE once the attempt is over and recorded

Before GO the steward may ask for the gateway socket that a child listens on. After FREE the init
exits: it never serves a second attempt.
"""

from __future__ import annotations

import os
import select
import sys
from contextlib import suppress

from retinue.child.named_fields import Record

GO = b"g"
EXECUTED, FREE = "+", "."
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

    def wait_readable(self, alarm: int) -> bool:
        """Wait; return whether data or end of file can be read, and not only `alarm`."""
        either = select.poll()
        for descriptor in (self.source, alarm):
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
