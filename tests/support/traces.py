"""Who is alive on this machine because of something a test did."""

from __future__ import annotations

import os
from pathlib import Path


def processes_that_mention(text: str) -> dict[int, str]:
    """Every living process that has the text in its arguments or its environment."""
    sought = text.encode()
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            argv = Path("/proc", name, "cmdline").read_bytes()
            if sought in argv or sought in Path("/proc", name, "environ").read_bytes():
                found[int(name)] = argv.replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue  # gone, or not ours to read
    return found


def is_over(pid: int) -> bool:
    """Whether a process has ended, reaped or not: its files and locks are free."""
    try:
        stat = Path("/proc", str(pid), "stat").read_text(errors="replace")
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"
