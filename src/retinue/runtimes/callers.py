"""Telling a child of ours from everybody else, by the kernel's word alone."""

from __future__ import annotations

import os
from collections.abc import Iterable

from retinue.runtimes import procfs


def child_above(pid: int, children: Iterable[int]) -> int | None:
    """The child that a process belongs to, or 0 when it is nobody of ours that we know; None
    when it shares our own namespace and stands below no child.

    Whoever loses its parent is given to the first process of its namespace, or to the one that
    asked for such orphans: the way up leads to its child, whatever it does.
    """
    known, above = set(children), pid
    while above > 1 and above not in known:
        try:
            found = procfs.stat(above)
        except OSError:
            found = None
        if found is None:
            return 0
        above = found.parent
    if above in known:
        return above
    return None if procfs.depth(pid) == procfs.depth(os.getpid()) else 0
