"""What time it is."""

from __future__ import annotations

import time

from retinue.wire.views import timestamp


def now() -> str:
    return timestamp(time.time())


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
