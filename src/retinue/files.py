"""Writing files so that a reader sees the old one or the new one, never half; reading ours."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from retinue.domain.errors import StorageFailed

AnyPath = str | Path
_WITHOUT_WAITING = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_NO_FILE = (errno.ELOOP, errno.ENXIO, errno.EISDIR)  # a link, a pipe or socket, a folder


class Reserve:
    """Descriptors kept back, to read what must not be missed where there are no others."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: list[int] = []
        self._holders = 0

    def fill(self) -> None:
        """They are kept back, as many as there still are, for one more holder."""
        self._holders += 1
        self._take()

    def release(self) -> None:
        """One holder less; with the last one they are given up."""
        self._holders -= 1
        if not self._holders:
            self._give(left=0)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """All but one can be used within, by whoever does not let others run meanwhile."""
        self._give(left=1)  # of which the others are copies, made in no time
        try:
            yield
        finally:
            if self._holders:
                self._take()

    def _take(self) -> None:
        with suppress(OSError):
            if not self._kept:
                self._kept = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)]
            while len(self._kept) < self._size:
                self._kept.append(os.dup(self._kept[0]))

    def _give(self, *, left: int) -> None:
        while len(self._kept) > left:
            os.close(self._kept.pop())


RESERVE = Reserve(6)  # of this process, as descriptors are


class NotPlain(OSError):
    """A link, a folder, a pipe or a device stands where a file of ours belongs."""

    def __init__(self, path: AnyPath) -> None:
        super().__init__(errno.EINVAL, "not a regular file", str(path))


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
        if isinstance(error, NotPlain):
            raise StorageFailed(
                f"{error.filename} is {error.strerror}",
                code="not_a_file",
                hint="somebody put something else in its place: move it away, then repeat",
            ) from error
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
        _fill(create(temporary, mode), temporary, data, mode)
        os.rename(temporary, path)


def write_first(path: AnyPath, data: bytes, mode: int) -> None:
    """The file holds exactly these bytes, where there was none; a reader may see it half written.

    Raises:
        FileExistsError: there was one.
    """
    _fill(os.open(path, _NEW, mode), path, data, mode)


def _fill(descriptor: int, path: AnyPath, data: bytes, mode: int) -> None:
    """The new file holds these bytes and is closed, or is gone."""
    try:
        if mode & 0o077:
            os.fchmod(descriptor, mode)  # whatever our umask: a child may be another user
        write_all(descriptor, data)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)


def create(path: AnyPath, mode: int = 0o600) -> int:
    """A new file, opened to be written; one that an interrupted writer left there is gone."""
    try:
        return os.open(path, _NEW, mode)
    except FileExistsError:
        os.unlink(path)
        return os.open(path, _NEW, mode)


def open_plain(path: AnyPath, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """A descriptor of a regular file. Nothing else is waited for: a child that runs without a
    boundary can put a pipe where a file of ours was.

    Raises:
        OSError: it cannot be opened.
        NotPlain: it is something else, or a link.
    """
    try:
        descriptor = os.open(path, flags | _WITHOUT_WAITING, mode)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise NotPlain(path) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotPlain(path)
    return descriptor


def read_plain(path: AnyPath, most: int = -1) -> bytes:
    """What a regular file holds, or so many bytes of it.

    Raises:
        OSError: it is not there, or cannot be read.
        NotPlain: it is something else, or a link.
    """
    with open(open_plain(path), "rb") as file:
        return file.read(most)


def append(path: AnyPath, data: bytes) -> None:
    """The file ends with these bytes."""
    with storage_failures(path):
        descriptor = open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            write_all(descriptor, data)
        finally:
            os.close(descriptor)


def append_once(path: AnyPath, data: bytes) -> None:
    """The file ends with these bytes, also when an interrupted caller had written them already."""
    with storage_failures(path):
        descriptor = open_plain(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
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


def entries(folder: Path) -> list[Path]:
    """All that is in a folder; nothing where there is none.

    Not by `Path.glob`, which takes a folder that it cannot read for an empty one.

    Raises:
        OSError: it cannot be read.
    """
    try:
        return [folder / name for name in os.listdir(folder)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def is_mark(status: os.stat_result) -> bool:
    """Whether this says that something below it was removed (overlayfs: a device 0, 0)."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def hides_below(folder: AnyPath) -> bool:
    """Whether nothing below this folder is seen through it (overlayfs)."""
    try:
        return os.getxattr(folder, "user.overlay.opaque", follow_symlinks=False) == b"y"
    except OSError:
        return False
