"""Checks of lent folders: resolution of untrusted links, and search for what no subagent may see.

Hidden are Retinue roots of any name (with database, gateway key and sockets), and named pipes: a
read-only mount does not keep a child from using a pipe.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from retinue.files import ROOT_MARKS, is_root_folder
from retinue.workspaces.child_tree import TreeWalk

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
    starts = [top.strip("/") for top in tops if not f"{top}/".startswith(SYSTEM)]
    roots: list[str] = []
    pipes: list[str] = []
    walk = TreeWalk(Path("/"), starts, most=MOST_ENTRIES, breadth_first=True)
    for folder in walk:
        if any(entry.name in ROOT_MARKS for entry in folder.entries):
            # The whole root is hidden, so nothing inside it needs a search.
            roots.append("/" + folder.path.removesuffix("/"))
            folder.enter.clear()
        else:
            pipes += [f"/{folder.path}{each.name}" for each in folder.entries if _is_pipe(each)]
        if len(roots) > MOST_ROOTS:
            break
    complete = walk.complete and len(roots) <= MOST_ROOTS and len(pipes) <= MOST_PIPES
    return Search(hidden=(*roots[:MOST_ROOTS], *pipes[:MOST_PIPES]), complete=complete)


def _is_pipe(entry: os.DirEntry[str]) -> bool:
    # These kinds are known from the listing, without another system call.
    if entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False):
        return False
    if entry.is_symlink():
        return False
    with suppress(OSError):
        return stat.S_ISFIFO(entry.stat(follow_symlinks=False).st_mode)
    return False


# Resolution of an untrusted path, link by link.
#
# Each link is read once, and its target is checked before anything behind it is accessed. The
# resolved path is recorded and later opened without following any link.

MOST_LINKS = 40  # the kernel's own limit


class LeadsOutside(Exception):
    """A path leads to a place that may not be accessed."""


def resolve_links(path: str, may_look: Callable[[str], bool], fence: str) -> str:
    """Return where an absolute path leads.

    Args:
        may_look: whether a place may be accessed. Where it may not, the caller does not even
            learn whether anything exists there.
        fence: a folder in which others write; a link inside it may not lead out of it.

    Raises:
        LeadsOutside: it leads to a place that may not be accessed, or out of the fence.
        OSError: nothing is there, or the links form a loop.
    """
    waiting = path.split("/")[::-1]
    here = "/"
    links = 0
    fenced = False
    while waiting:
        name = waiting.pop()
        if name in ("", "."):
            continue
        if name == "..":
            here = os.path.dirname(here)
            continue
        place = f"{here.rstrip('/')}/{name}"
        # Check before lstat: even an error would tell whether the place exists.
        if not may_look(place) or (
            fenced and not (is_below(place, fence) or is_below(fence, place))
        ):
            raise LeadsOutside(place)
        if not stat.S_ISLNK(os.lstat(place).st_mode):
            here = place
            continue
        links += 1
        if links > MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        target = os.readlink(place)
        # One link inside the fence is enough: from then on the path is under a child's control.
        fenced = fenced or is_below(place, fence)
        here = "/" if target.startswith("/") else here
        waiting += target.split("/")[::-1]
    return here


def is_below(place: str, folder: str) -> bool:
    """Return whether a place is the folder itself or lies in it."""
    return place == folder or place.startswith(f"{folder.rstrip('/')}/")
