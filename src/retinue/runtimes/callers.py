"""Telling a child of ours from everybody else, by the kernel's word alone."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from retinue.runtimes import procfs


def child_above(pid: int, children: Iterable[int]) -> int | None:
    """The child that a process belongs to, or 0 when it is nobody of ours that we know; None
    when it shares our own namespace and stands below no child.

    In a namespace of its own, a process cannot hide where it lives; in ours, its parents tell.
    """
    inits = list(children)
    home = _namespace(pid)
    if home is None:
        return 0
    if home != _namespace(os.getpid()):
        return next((init for init in inits if _namespace(init) == home), 0)
    known = set(inits)
    while pid > 1 and pid not in known:
        found = procfs.stat(pid)
        if found is None:
            return None
        pid = found.parent
    return pid if pid in known else None


def _namespace(pid: int) -> str | None:
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/pid")
    return None
