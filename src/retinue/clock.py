"""Clocks, and the identity of the current boot."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path

from retinue.formats.views_json import format_timestamp


def get_timestamp() -> str:
    return format_timestamp(time.time())


def read_monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


@cache
def read_boot_id() -> str:
    """Return the id of the current boot, which changes at each restart of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
