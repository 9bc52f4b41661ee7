"""Clocks, and the identity of the current boot."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

FIRST_MOMENT = datetime.min.replace(tzinfo=UTC).timestamp()
LAST_MOMENT = datetime.max.replace(microsecond=0, tzinfo=UTC).timestamp()


def format_timestamp(seconds: float) -> str:
    """Format a time as UTC with milliseconds; times beyond years 1 to 9999 are clamped."""
    moment = datetime.fromtimestamp(min(max(seconds, FIRST_MOMENT), LAST_MOMENT), UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def get_timestamp() -> str:
    return format_timestamp(time.time())


def read_monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


@cache
def read_boot_id() -> str:
    """Return the id of the current boot, which changes at each restart of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
