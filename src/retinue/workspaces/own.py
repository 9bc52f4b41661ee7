"""What is ours inside a child's reach: it stands where it belongs, whatever a child put there.

Where a child runs without a boundary of its own, it can replace our folders and
files by links, pipes or folders. None of them is followed or opened: a name that
leads elsewhere is removed, anything else is moved aside and kept.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from itertools import count
from pathlib import Path

from retinue.domain.errors import StorageFailed
from retinue.files import AnyPath, append_once, storage_failures, write_atomic, write_first
from retinue.workspaces.removal import unlock


def own_folder(path: AnyPath) -> None:
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
            _make(path)
        elif status.st_mode & 0o700 != 0o700:
            unlock(path)


def reopen(*folders: AnyPath) -> None:
    """Whoever owns these folders may use them, whatever a child took away; no link is followed.

    What cannot be done here is met again, and told, by whoever looks into them.
    """
    for folder in folders:
        with suppress(OSError):
            if os.lstat(folder).st_mode & 0o700 != 0o700:
                unlock(folder)


def is_new_folder(path: AnyPath) -> bool:
    """Whether nothing stood here; then a folder of ours does, and nobody has seen it yet."""
    try:
        os.mkdir(path, 0o700)
    except OSError:  # whoever goes on from here will meet it again
        return False
    return True


def _make(path: AnyPath) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileNotFoundError:
        Path(path).mkdir(mode=0o700, parents=True)


def put(path: AnyPath, data: bytes, mode: int = 0o600) -> None:
    """The file holds exactly these bytes, and is nobody else's.

    Raises:
        StorageFailed: the disk said no.
    """
    try:
        write_atomic(path, data, mode)
    except StorageFailed as error:
        if not isinstance(error.__cause__, IsADirectoryError | NotADirectoryError):
            raise
        folder, name = os.path.split(path)
        for place in (path, f"{folder}/.{name}.new"):
            _keep_plain(place)
        write_atomic(path, data, mode)


def put_first(path: AnyPath, data: bytes, mode: int = 0o600) -> None:
    """The same, where nothing is expected to stand and nobody reads yet.

    Raises:
        StorageFailed: the disk said no.
    """
    with storage_failures(path):
        try:
            write_first(path, data, mode)
        except FileExistsError:  # an interrupted writer's
            put(path, data, mode)


def add(path: AnyPath, data: bytes) -> None:
    """The file ends with these bytes, and is nobody else's.

    Raises:
        StorageFailed: the disk said no.
    """
    _keep_plain(path)
    append_once(path, data)


def _keep_plain(path: AnyPath) -> None:
    """At most a file that has no second name stands here."""
    with storage_failures(path):
        status = _status(path)
        if status is not None and not (stat.S_ISREG(status.st_mode) and status.st_nlink == 1):
            _clear(path, status)


def _clear(path: AnyPath, status: os.stat_result) -> None:
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(path)
        return
    places = (f"{path}.replaced-{number}" for number in count(1))
    os.rename(path, next(place for place in places if not os.path.lexists(place)))


def _status(path: AnyPath) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None
