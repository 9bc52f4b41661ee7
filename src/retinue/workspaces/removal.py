"""Removal of trees that a child made, at any depth, with any permissions, never through a link."""

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
PASSED = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

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


def unlock(name: AnyPath, parent: int | None = None) -> None:
    """Give a folder's owner full access to it.

    Raises:
        OSError: it does not exist, is not a folder, or belongs to another user.
    """
    with hold_descriptor(os.open(name, PASSED, dir_fd=parent)) as handle:
        mode = os.fstat(handle).st_mode
        if mode & 0o700 != 0o700:
            try:
                # By descriptor: a child cannot swap it for a link between check and change.
                os.chmod(f"/proc/self/fd/{handle}", mode & 0o777 | 0o700)
            except OSError as error:
                raise OSError(error.errno or errno.EPERM, error.strerror, str(name)) from None


@contextmanager
def hold_descriptor(descriptor: int) -> Iterator[int]:
    """Yield the descriptor and close it afterwards."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)
