"""What is said between the steward and the first process of an attempt.

child    one line, once there is one: `pid N`; else `unavailable WHY` or `error WHY`
steward  8 bytes of length, the order; then GO, or end of file if it is gone
child    EXECUTED, or `-WHY`; FREE once the attempt is over and recorded

Before GO the steward may ask a child that listens for its gateway's socket, and gets it. Who is
free waits for another order, or goes.
"""

from __future__ import annotations

import os
import select
import sys
from contextlib import suppress

from retinue.child.record import Record

GO = b"g"
EXECUTED, FREE = "+", "."
STEP = 1 << 20


class Control(Record):
    """The child's end: a socket, or two pipes where a launcher stands in between."""

    source: int
    sink: int

    def receive(self, size: int) -> bytes:
        """So many bytes of the steward; fewer once it is gone."""
        data = bytearray()
        with suppress(OSError):  # it went without having read what we said
            while len(data) < size and (more := os.read(self.source, min(size - len(data), STEP))):
                data += more
        return bytes(data)

    def ready(self, alarm: int) -> bool:
        """There is something to receive, if only the end; not when the alarm was raised first."""
        either = select.poll()
        for descriptor in (self.source, alarm):
            either.register(descriptor, select.POLLIN)
        return self.source in {descriptor for descriptor, _ in either.poll()}

    def receive_order(self) -> bytes:
        size = int.from_bytes(self.receive(8), sys.byteorder)
        data = self.receive(size)
        return data if len(data) == size else b""

    def tell(self, text: str) -> None:
        with suppress(OSError):  # the steward is gone; whoever comes after it reads the record
            os.write(self.sink, text.encode("utf-8", "replace"))

    def close(self) -> None:
        for descriptor in {self.source, self.sink}:
            with suppress(OSError):
                os.close(descriptor)
