"""Exclusive lock of a root, held by the steward or by a program that opened the root."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from retinue.core.errors import StewardUnavailable
from retinue.files import open_plain, storage_failures, write_atomic
from retinue.settings import IGNORE
from retinue.trust import make_root


def prepare_root(root: Path, environment: Mapping[str, str] = os.environ) -> None:
    """Create the root if needed, and make it accessible to its owner only.

    Raises:
        BadInput: it is not a folder, or belongs to another user.
        Refused: it is not trusted.
        StorageFailed: it cannot be made.
    """
    with storage_failures(root):
        make_root(root, environment)
        if stat.S_IMODE(root.stat().st_mode) != 0o700:
            root.chmod(0o700)
        (root / "tasks").mkdir(mode=0o700, exist_ok=True)
        ignore = root / ".gitignore"
        if not ignore.exists():  # a root in a repository must not show up as a change
            write_atomic(ignore, IGNORE)


class RootLock:
    """File locks, which the kernel releases when the process ends in any way.

    Both the lock file and the root folder are locked, since the file may be removed by hand.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / "steward.lock"
        with storage_failures(self._path):
            self._file = open_plain(self._path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._folder = _lock_folder(root)
            if not _is_at(self._path, self._file):
                os.close(self._folder)
                # An earlier holder removed the unused root after the file was opened.
                raise OSError
        except OSError:
            holder = os.read(self._file, 64).decode("ascii", "replace").strip()
            os.close(self._file)
            raise StewardUnavailable(
                f"{root} is held by process {holder or 'unknown'}",
                code="root_held",
                hint="if that is a steward, use retinue.connect(), or stop it with 'retinue "
                "steward stop'; otherwise end that program",
            ) from None
        with storage_failures(self._path):
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    @property
    def is_in_place(self) -> bool:
        """Return whether the root at its path is still the locked folder."""
        return _is_at(self._path.parent, self._folder)

    def release(self) -> None:
        os.close(self._folder)
        os.close(self._file)


def _is_at(path: Path, file: int) -> bool:
    """Return whether the open file is still the one at this path."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _lock_folder(folder: Path) -> int:
    """Lock the folder and return its descriptor.

    Raises:
        BlockingIOError: another process holds it.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:
        pass  # NFS cannot lock folders; the lock on the file suffices there
    return descriptor
