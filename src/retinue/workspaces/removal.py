"""Removing trees that a child made: however deep, however locked, never through a link."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from retinue.files import AnyPath, storage_failures

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_HANDLE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

LONGEST_SECONDS = 3600.0  # that anyone works in a folder of a passing name


def is_stale(path: Path) -> bool:
    """Whether whoever made this for a while must have ended without removing it."""
    with storage_failures(path):
        try:
            made = path.lstat().st_mtime
        except FileNotFoundError:  # by now it is removed, or has the name that it was made for
            return False
        return time.time() - made >= LONGEST_SECONDS


def remove_tree(path: Path) -> None:
    """Nothing is left at this path.

    Raises:
        StorageFailed: something cannot be removed; what could be is gone.
    """
    with storage_failures(path):
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
            return
        with opened(os.open(path.parent, FOLDER)) as parent:
            unlock(path.name, parent)
        with opened(os.open(path, FOLDER)) as top:
            _empty(top)
        path.rmdir()


def _empty(top: int) -> None:
    """Folders within folders are moved up beside each other first, so that no depth needs a
    longer path, a deeper stack or more descriptors."""
    waiting = _without_files(top)
    taken = set(waiting)
    numbers = count()
    while waiting:
        name = waiting.pop()
        unlock(name, top)
        with opened(os.open(name, FOLDER, dir_fd=top)) as folder:
            for inner in _without_files(folder):
                new = next(each for n in numbers if (each := f".removed-{n}") not in taken)
                unlock(inner, folder)
                os.rename(inner, new, src_dir_fd=folder, dst_dir_fd=top)
                waiting.append(new)
        os.rmdir(name, dir_fd=top)


def _without_files(folder: int) -> list[str]:
    """The names of a folder's folders, which are all that is left in it."""
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if not is_folder:
            os.unlink(name, dir_fd=folder)
    return [name for name, is_folder in found if is_folder]


def unlock(name: AnyPath, parent: int | None = None) -> None:
    """A folder that its owner may look into and write; the handle cannot be swapped for a link.

    Raises:
        OSError: it is not there, is no folder, or is somebody else's.
    """
    with opened(os.open(name, _HANDLE, dir_fd=parent)) as handle:
        mode = os.fstat(handle).st_mode
        if mode & 0o700 != 0o700:
            try:
                os.chmod(f"/proc/self/fd/{handle}", mode & 0o777 | 0o700)
            except OSError as error:
                raise OSError(error.errno or errno.EPERM, error.strerror, str(name)) from None


@contextmanager
def opened(descriptor: int) -> Iterator[int]:
    """It is closed afterwards, whatever happens."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)
