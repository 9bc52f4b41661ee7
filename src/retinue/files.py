"""Writing files so that a reader sees the old one or the new one, never half."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from retinue.domain.errors import StorageFailed

AnyPath = str | Path


class storage_failures:
    """What the file system refuses is a StorageFailed that names path and errno.

    Raises:
        StorageFailed: in place of any OSError.
    """

    def __init__(self, path: AnyPath) -> None:
        self._path = path

    def __enter__(self) -> None:
        """Nothing is refused yet."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            code = "disk_full" if error.errno in (28, 122) else "storage_failed"
            raise StorageFailed(
                f"cannot write {error.filename or self._path}: {error.strerror} "
                f"(errno {error.errno})",
                code=code,
                hint="free space or repair the disk, then repeat",
            ) from error


def write_atomic(path: AnyPath, data: bytes, mode: int = 0o600) -> None:
    """The file holds exactly these bytes, for every reader at every instant before or after.

    Whatever stood there is replaced, a link by a file; a folder is refused.
    """
    with storage_failures(path):
        folder, name = os.path.split(path)
        temporary = f"{folder}/.{name}.new"
        descriptor = _create(temporary, mode)
        try:
            if mode & 0o077:
                os.fchmod(descriptor, mode)  # whatever our umask: a child may be another user
            write_all(descriptor, data)
        except OSError:
            os.unlink(temporary)
            raise
        finally:
            os.close(descriptor)
        os.rename(temporary, path)


def write_first(path: AnyPath, data: bytes, mode: int = 0o600) -> None:
    """The file holds exactly these bytes, where there was none; a reader may see it half written.

    Raises:
        FileExistsError: there was one.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        if mode & 0o077:
            os.fchmod(descriptor, mode)
        write_all(descriptor, data)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)


def _create(path: str, mode: int) -> int:
    """A new file; one that an interrupted writer left there is gone."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, mode)
    except FileExistsError:
        os.unlink(path)
        return os.open(path, flags, mode)


def append(path: AnyPath, data: bytes) -> None:
    """The file ends with these bytes."""
    with storage_failures(path):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        try:
            write_all(descriptor, data)
        finally:
            os.close(descriptor)


def append_once(path: AnyPath, data: bytes) -> None:
    """The file ends with these bytes, also when an interrupted caller had written them already."""
    with storage_failures(path):
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        try:
            before = os.fstat(descriptor).st_size - len(data)
            if before < 0 or os.pread(descriptor, len(data), before) != data:
                write_all(descriptor, data)
        finally:
            os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def make_folder(path: AnyPath, mode: int = 0o700) -> None:
    """The folder exists; by default only its owner may look into it."""
    with storage_failures(path):
        try:
            os.mkdir(path, mode)
        except FileExistsError:
            if not os.path.isdir(path):
                raise
            return
        except FileNotFoundError:
            os.makedirs(path)
            os.chmod(path, mode)
        if mode & 0o077:
            os.chmod(path, mode)


def is_mark(status: os.stat_result) -> bool:
    """Whether this says that something below it was removed (overlayfs: a device 0, 0)."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def hides_below(folder: AnyPath) -> bool:
    """Whether nothing below this folder is seen through it (overlayfs)."""
    try:
        return os.getxattr(folder, "user.overlay.opaque", follow_symlinks=False) == b"y"
    except OSError:
        return False
