"""What other clients see of a steward while a child keeps it busy."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.roots import Root


class Watch:
    """What others see of a steward meanwhile."""

    longest_s = 0.0
    descriptors = 0
    peak_mb = 0


@contextmanager
def watched(root: Root) -> Iterator[Watch]:
    over, seen, process = threading.Event(), Watch(), Path("/proc", str(root.pid))

    def look() -> None:
        while not over.wait(0.02):
            began = time.monotonic()
            root.call("steward.status")
            seen.longest_s = max(seen.longest_s, time.monotonic() - began)
            seen.descriptors = max(seen.descriptors, len(os.listdir(process / "fd")))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield seen
    finally:
        over.set()
        looking.join()
        (peak,) = (
            line.split()[1]
            for line in (process / "status").read_text().splitlines()
            if line.startswith("VmHWM")
        )
        seen.peak_mb = int(peak) // 1024
