"""Retinue's own files and folders within reach of a child.

A child without a sandbox can replace them by links, pipes or folders. None of these is followed or
opened: a folder is moved aside and kept, anything else is removed.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from itertools import count
from pathlib import Path

from retinue.core.errors import StorageFailed
from retinue.files import AnyPath, append_once, storage_failures, write_atomic, write_first
from retinue.workspaces.removal import unlock


def own_folder(path: AnyPath) -> None:
    """Make sure that a folder of ours is here and writable, replacing anything else.

    Raises:
        StorageFailed: the disk refused.
    """
    with storage_failures(path):
        status = _read_status(path)
        if status is not None and not stat.S_ISDIR(status.st_mode):
            _clear(path, status)
            status = None
        if status is None:
            _make(path)
        elif status.st_mode & 0o700 != 0o700:
            unlock(path)


def unlock_folders(*folders: AnyPath) -> None:
    """Restore the owner's access to these folders, which a child may have removed.

    Links are not followed. Errors are ignored: the next access reports them.
    """
    for folder in folders:
        with suppress(OSError):
            if os.lstat(folder).st_mode & 0o700 != 0o700:
                unlock(folder)


def is_new_folder(path: AnyPath) -> bool:
    """Create a folder; return whether nothing was there before."""
    try:
        os.mkdir(path, 0o700)
    except OSError:  # the caller's next access reports it
        return False
    return True


def _make(path: AnyPath) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileNotFoundError:
        Path(path).mkdir(mode=0o700, parents=True)


def put(path: AnyPath, data: bytes, mode: int = 0o600) -> None:
    """Write a file with exactly this content, replacing a link or a folder in its place.

    Raises:
        StorageFailed: the disk refused.
    """
    try:
        write_atomic(path, data, mode)
    except StorageFailed as error:
        if not isinstance(error.__cause__, IsADirectoryError | NotADirectoryError):
            raise
        folder, name = os.path.split(path)
        for place in (path, f"{folder}/.{name}.new"):
            keep_plain(place)
        write_atomic(path, data, mode)


def put_first(path: AnyPath, data: bytes, mode: int = 0o600) -> None:
    """Write a new file, where none is expected and there is no reader yet.

    Raises:
        StorageFailed: the disk refused.
    """
    with storage_failures(path):
        try:
            write_first(path, data, mode)
        except FileExistsError:  # left by an interrupted write
            put(path, data, mode)


def add(path: AnyPath, data: bytes) -> None:
    """Append to a file, replacing a link or a folder in its place.

    Raises:
        StorageFailed: the disk refused.
    """
    keep_plain(path)
    append_once(path, data)


def keep_plain(path: AnyPath) -> None:
    """Remove or move aside anything here but a plain file with one name."""
    with storage_failures(path):
        status = _read_status(path)
        if status is not None and not (stat.S_ISREG(status.st_mode) and status.st_nlink == 1):
            _clear(path, status)


def _clear(path: AnyPath, status: os.stat_result) -> None:
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(path)
        return
    # A folder may hold a child's work, so it is kept under another name.
    places = (f"{path}.replaced-{number}" for number in count(1))
    os.rename(path, next(place for place in places if not os.path.lexists(place)))


def _read_status(path: AnyPath) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None
