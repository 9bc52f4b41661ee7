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


def children_of(pid: int) -> dict[int, str]:
    """The children of a process, and what each is doing."""
    found: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if int(parent) == pid:
                found[int(folder.name)] = state
    return found


def holdings(pid: int) -> tuple[int, int, int]:
    """How many descriptors, threads and children a process has."""
    descriptors, threads = (len(os.listdir(f"/proc/{pid}/{name}")) for name in ("fd", "task"))
    return descriptors, threads, len(children_of(pid))


def is_over(pid: int) -> bool:
    """Whether a process has ended, reaped or not: its files and locks are free."""
    try:
        stat = Path("/proc", str(pid), "stat").read_text(errors="replace")
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"
