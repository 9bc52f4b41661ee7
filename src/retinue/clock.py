"""What time it is, and since when there is one."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path

from retinue.wire.views import timestamp


def now() -> str:
    return timestamp(time.time())


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


@cache
def boot_id() -> str:
    """This boot of this machine; another one after a restart."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
