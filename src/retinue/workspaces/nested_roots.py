"""Search of lent folders for what no subagent may see in them.

Hidden are Retinue roots of any name (with database, gateway key and sockets), and named pipes: a
read-only mount does not keep a child from using a pipe.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from retinue.files import ROOT_MARKS, is_root_folder

SYSTEM = ("/usr/", "/opt/", "/etc/")  # visible to every child anyway
MOST_ENTRIES = 200_000  # takes about a second
MOST_ROOTS, MOST_PIPES = 128, 128  # each one costs a mount


@dataclass(frozen=True, kw_only=True)
class Search:
    hidden: tuple[str, ...] = ()
    complete: bool = True  # whether everything was searched


def find_root_above(place: Path) -> Path | None:
    """Return the outermost root that contains a place; None without one."""
    return next((each for each in reversed(place.parents) if is_root_folder(each)), None)


def find_hidden(tops: Sequence[str]) -> Search:
    """Return what must be hidden in these folders.

    The search is breadth first, so that entries near the top are found in any tree. Links are not
    followed: a mount shows them as links, and their targets are not mounted.
    """
    waiting = deque(top for top in tops if not f"{top}/".startswith(SYSTEM))
    roots: list[str] = []
    pipes: list[str] = []
    left = MOST_ENTRIES
    while waiting and left and len(roots) <= MOST_ROOTS:
        folder = waiting.popleft()
        folders: list[str] = []
        found: list[str] = []
        marked = False
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in islice(entries, left):
                left -= 1
                marked = marked or entry.name in ROOT_MARKS
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif not (entry.is_file(follow_symlinks=False) or entry.is_symlink()):
                    found += [entry.path] if _is_pipe(entry) else []
        # The whole root is hidden, so nothing inside it needs a search.
        if marked:
            roots.append(folder)
        else:
            waiting += folders
            pipes += found
    complete = not waiting and left > 0 and len(pipes) <= MOST_PIPES
    return Search(hidden=(*roots[:MOST_ROOTS], *pipes[:MOST_PIPES]), complete=complete)


def _is_pipe(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):
        return stat.S_ISFIFO(entry.stat(follow_symlinks=False).st_mode)
    return False
