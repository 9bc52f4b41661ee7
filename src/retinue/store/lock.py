"""One holder per root: the steward, or a program that opened it."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

from retinue.domain.errors import StewardUnavailable
from retinue.files import open_plain, storage_failures, write_atomic
from retinue.settings import require_usable


def prepare_root(root: Path) -> None:
    """The root exists, is ours, and nobody else may look into it.

    Raises:
        BadInput: it is something else, or somebody else's.
        StorageFailed: it cannot be made.
    """
    require_usable(root)
    with storage_failures(root):
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if stat.S_IMODE(root.stat().st_mode) != 0o700:
            root.chmod(0o700)
        (root / "tasks").mkdir(mode=0o700, exist_ok=True)
        ignore = root / ".gitignore"
        if not ignore.exists():  # in a repository, nothing of ours is anybody's change
            write_atomic(ignore, b"*\n")


class RootLock:
    """Held by open files: the kernel lets go of them with the process, however it ends.

    The folder is locked like the file in it, which somebody may have removed.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / "steward.lock"
        with storage_failures(self._path):
            self._file = open_plain(self._path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._folder = _locked(root)
        except OSError:
            holder = os.read(self._file, 64).decode("ascii", "replace").strip()
            os.close(self._file)
            raise StewardUnavailable(
                f"{root} is held by process {holder or 'unknown'}",
                code="root_held",
                hint="where that is a steward, retinue.connect() asks it, and 'retinue steward "
                "stop' ends it; else end that program",
            ) from None
        with storage_failures(self._path):
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        os.close(self._folder)
        os.close(self._file)


def _locked(folder: Path) -> int:
    """Raises:
    BlockingIOError: somebody holds it.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:
        pass  # NFS locks no folders: there the file has to do
    return descriptor
