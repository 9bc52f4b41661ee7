"""Folders that an entry needs: made where missing, and known again as ours.

A folder that we made says so itself, in an extended attribute: nothing else could tell it from an
empty one of somebody else's. Where a file system keeps no such attributes, it stays.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

MARK = "user.retinue.made"


def make(folder: Path) -> None:
    """The folder exists; whichever had to be made for that is marked.

    Raises:
        OSError: it could not be made.
    """
    for each in (*reversed(folder.parents), folder):
        if each.is_dir():
            continue
        each.mkdir()
        with suppress(OSError):
            os.setxattr(each, MARK, b"1")


def clear(folder: Path) -> None:
    """No folder that we made is left empty; nobody else's was touched."""
    for each in (folder, *folder.parents):
        try:
            os.getxattr(each, MARK)
            each.rmdir()
        except OSError:  # not ours, or of use to somebody
            return
