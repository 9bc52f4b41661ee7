"""Resolution of an untrusted path, link by link.

Each link is read once, and its target is checked before anything behind it is accessed. The
resolved path is recorded and later opened without following any link.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

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
