"""What is ours inside a child's reach: it stands where it belongs, whatever a child put there.

Where a child runs without a boundary of its own, it can replace our folders and
files by links, pipes or folders. None of them is followed or opened: a name that
leads elsewhere is removed, anything else is moved aside and kept.
"""

from __future__ import annotations

import os
import stat
from itertools import count
from pathlib import Path

from retinue.domain.errors import StorageFailed
from retinue.files import append_once, storage_failures, write_atomic


def own_folder(path: Path) -> None:
    """A folder of ours stands here, and we may write in it.

    Raises:
        StorageFailed: the disk said no.
    """
    with storage_failures(path):
        status = _status(path)
        if status is not None and not stat.S_ISDIR(status.st_mode):
            _clear(path, status)
            status = None
        if status is None:
            path.mkdir(mode=0o700, parents=True)
        elif status.st_mode & 0o700 != 0o700:
            path.chmod(0o700)


def put(path: Path, data: bytes, mode: int = 0o600) -> None:
    """The file holds exactly these bytes, and is nobody else's.

    Raises:
        StorageFailed: the disk said no.
    """
    try:
        write_atomic(path, data, mode)
    except StorageFailed as error:
        if not isinstance(error.__cause__, IsADirectoryError | NotADirectoryError):
            raise
        for place in (path, path.with_name(f".{path.name}.new")):
            _keep_plain(place)
        write_atomic(path, data, mode)


def add(path: Path, data: bytes) -> None:
    """The file ends with these bytes, and is nobody else's.

    Raises:
        StorageFailed: the disk said no.
    """
    _keep_plain(path)
    append_once(path, data)


def _keep_plain(path: Path) -> None:
    """At most a file that has no second name stands here."""
    with storage_failures(path):
        status = _status(path)
        if status is not None and not (stat.S_ISREG(status.st_mode) and status.st_nlink == 1):
            _clear(path, status)


def _clear(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISDIR(status.st_mode):
        path.unlink()
        return
    places = (path.with_name(f"{path.name}.replaced-{number}") for number in count(1))
    path.rename(next(place for place in places if not os.path.lexists(place)))


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None
