"""Retinue's own files and folders within reach of a child, and the removal of trees.

A child without a sandbox can replace them by links, pipes or folders. None of these is followed or
opened: a folder is moved aside and kept, anything else is removed.

A tree that a child made is removed at any depth, with any permissions, never through a link.
"""

from __future__ import annotations

import os
import stat
import time
from itertools import count
from pathlib import Path

from retinue.core.errors import StorageFailed
from retinue.files import (
    AnyPath,
    NotPlainFile,
    append_once,
    hold_descriptor,
    storage_failures,
    unlock,
    write_atomic,
    write_first,
)

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

LONGEST_SECONDS = 3600.0  # longest use of a temporary folder


def is_stale(path: Path) -> bool:
    """Return whether a temporary folder is so old that its maker must have died."""
    with storage_failures(path):
        try:
            made = path.lstat().st_mtime
        except FileNotFoundError:  # removed, or renamed to its final name
            return False
        return time.time() - made >= LONGEST_SECONDS


def remove_tree(path: Path) -> None:
    """Remove whatever is at this path.

    Raises:
        StorageFailed: something cannot be removed; the rest is gone.
    """
    with storage_failures(path):
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
            return
        with hold_descriptor(os.open(path.parent, FOLDER)) as parent:
            unlock(path.name, parent)
        with hold_descriptor(os.open(path, FOLDER)) as top:
            _remove_content(top)
        path.rmdir()


def _remove_content(top: int) -> None:
    """Remove everything in a folder.

    Nested folders are first moved up to the top. So no depth needs a longer path, a deeper stack
    or more descriptors.
    """
    waiting = _remove_files(top)
    taken = set(waiting)
    numbers = count()
    while waiting:
        name = waiting.pop()
        unlock(name, top)
        with hold_descriptor(os.open(name, FOLDER, dir_fd=top)) as folder:
            for inner in _remove_files(folder):
                new = next(each for n in numbers if (each := f".removed-{n}") not in taken)
                unlock(inner, folder)
                os.rename(inner, new, src_dir_fd=folder, dst_dir_fd=top)
                waiting.append(new)
        os.rmdir(name, dir_fd=top)


def _remove_files(folder: int) -> list[str]:
    """Remove all files of a folder; return the names of its folders."""
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if not is_folder:
            os.unlink(name, dir_fd=folder)
    return [name for name, is_folder in found if is_folder]


def own_folder(*paths: AnyPath) -> None:
    """Make sure that folders of ours are here and writable, replacing anything else.

    Raises:
        StorageFailed: the disk refused.
    """
    with storage_failures(paths[0]):
        for path in paths:
            status = _read_status(path)
            if status is not None and not stat.S_ISDIR(status.st_mode):
                _clear(path, status)
                status = None
            if status is None:
                _make(path)
            elif status.st_mode & 0o700 != 0o700:
                unlock(path)


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
    if not write_first(path, data, mode):  # an interrupted write left it
        put(path, data, mode)


def add(path: AnyPath, data: bytes) -> None:
    """Append to a file, replacing a link or a folder in its place.

    Raises:
        StorageFailed: the disk refused.
    """
    try:
        append_once(path, data)
    except StorageFailed as error:
        if not isinstance(error.__cause__, NotPlainFile):
            raise
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
