"""Atomic writes, and reads of files that a hostile child may have replaced."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from retinue.core.errors import StorageFailed

AnyPath = str | Path
ROOT_MARKS = frozenset({"steward.lock", "retinue.db", "gateway.key"})  # only roots hold these
_WITHOUT_WAITING = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
# To pass through a folder, which needs no permission to read it.
PASSED = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_NO_FILE = (errno.ELOOP, errno.ENXIO, errno.EISDIR)  # a link, a pipe or socket, a folder


class DescriptorReserve:
    """Reserved file descriptors, for reads that must succeed when no other is free."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: list[int] = []
        self._holders = 0

    def fill(self) -> None:
        """Reserve descriptors, as many as are free, for one more holder."""
        self._holders += 1
        self._take()

    def release(self) -> None:
        """Remove one holder; with the last one the reserve is closed."""
        self._holders -= 1
        if not self._holders:
            self._give(left=0)

    @contextmanager
    def use_descriptors(self) -> Iterator[None]:
        """Free all reserved descriptors but one for the block, which must not await."""
        # One is kept to duplicate from, which is fast.
        self._give(left=1)
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


RESERVE = DescriptorReserve(6)  # one for the whole process


class NotPlainFile(OSError):
    """A link, folder, pipe or device is in the place of a regular file."""

    def __init__(self, path: AnyPath) -> None:
        super().__init__(errno.EINVAL, "not a regular file", str(path))


class storage_failures:
    """Context manager that turns an OSError into a StorageFailed with path and errno.

    Raises:
        StorageFailed: in place of any OSError.
    """

    def __init__(self, path: AnyPath) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, NotPlainFile):
            raise StorageFailed(
                f"{error.filename} is {error.strerror}",
                code="not_a_file",
                hint="it was replaced by something else: move that away, then repeat",
            ) from error
        if isinstance(error, OSError):
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            code = "disk_full" if is_full else "storage_failed"
            raise StorageFailed(
                f"cannot write {error.filename or self._path}: {error.strerror} "
                f"(errno {error.errno})",
                code=code,
                hint="free space or repair the disk, then repeat",
            ) from error


def write_atomic(path: AnyPath, data: bytes, mode: int = 0o600, *, synced: bool = False) -> None:
    """Replace the file's content atomically: a reader sees the old or the new one.

    A link is replaced by a file; a folder is refused.

    Args:
        synced: a power loss leaves the old or the new content; else it may leave an empty file.
    """
    with storage_failures(path):
        folder, name = os.path.split(path)
        temporary = f"{folder}/.{name}.new"
        _fill(create(temporary, mode), temporary, data, mode, synced=synced)
        os.rename(temporary, path)


def write_first(path: AnyPath, data: bytes, mode: int) -> bool:
    """Write a new file, which a reader may see half written; return False if it exists."""
    with storage_failures(path):
        try:
            descriptor = os.open(path, _NEW, mode)
        except FileExistsError:
            return False
        _fill(descriptor, path, data, mode)
        return True


def _fill(descriptor: int, path: AnyPath, data: bytes, mode: int, *, synced: bool = False) -> None:
    """Write a new file and close it; remove it if that fails."""
    try:
        # Against the umask: a child may be another user, who must be able to read it.
        if mode & 0o077:
            os.fchmod(descriptor, mode)
        write_all(descriptor, data)
        if synced:
            os.fsync(descriptor)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)


def create(path: AnyPath, mode: int = 0o600) -> int:
    """Create and open a file, in place of one that an interrupted writer left."""
    try:
        return os.open(path, _NEW, mode)
    except FileExistsError:
        os.unlink(path)
        return os.open(path, _NEW, mode)


def open_plain(path: AnyPath, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """Open a regular file without blocking and without following a link.

    A child without a boundary can put a pipe in the place of a file, which would block.

    Raises:
        OSError: the file cannot be opened.
        NotPlainFile: it is not a regular file.
    """
    try:
        descriptor = os.open(path, flags | _WITHOUT_WAITING, mode)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise NotPlainFile(path) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotPlainFile(path)
    return descriptor


def open_without_links(path: AnyPath, flags: int = os.O_PATH) -> int:
    """Open an absolute path one component at a time, following no link.

    Raises:
        OSError: the path does not exist, or (ELOOP) a component is a link.
    """
    *folders, name = [part for part in str(path).split("/") if part] or ["."]
    here = os.open("/", PASSED)
    try:
        for folder in folders:
            above = here
            here = _enter_folder(here, folder)
            os.close(above)
        found = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(here)
    if flags & os.O_PATH and stat.S_ISLNK(os.fstat(found).st_mode):
        os.close(found)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return found


def _enter_folder(folder: int, name: str) -> int:
    try:
        return os.open(name, PASSED, dir_fd=folder)
    except NotADirectoryError:
        # The kernel reports ENOTDIR for a file and for a link alike; callers look for ELOOP.
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name) from None
        raise


def read_plain(path: AnyPath, most: int = -1) -> bytes:
    """Return the content of a regular file, or its first `most` bytes.

    Raises:
        OSError: the file does not exist, or cannot be read.
        NotPlainFile: it is not a regular file.
    """
    with open(open_plain(path), "rb") as file:
        return file.read(most)


def append(path: AnyPath, data: bytes) -> None:
    with storage_failures(path):
        descriptor = open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            write_all(descriptor, data)
        finally:
            os.close(descriptor)


def append_once(path: AnyPath, data: bytes) -> None:
    """Append bytes, unless the file ends with them already after an interrupted call.

    Raises:
        StorageFailed: the disk refused; caused by NotPlainFile where a link is, also a hard one.
    """
    with storage_failures(path):
        descriptor = open_plain(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            status = os.fstat(descriptor)
            # A child may have linked another file of this user here.
            if status.st_nlink != 1:
                raise NotPlainFile(path)
            before = status.st_size - len(data)
            if before < 0 or os.pread(descriptor, len(data), before) != data:
                write_all(descriptor, data)
        finally:
            os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def make_folder(path: AnyPath, mode: int = 0o700) -> None:
    """Make a folder if it does not exist; by default only for its owner."""
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


def make_folders(*paths: AnyPath) -> None:
    """Make these folders where they do not exist, only for their owner."""
    for path in paths:
        make_folder(path)


def require_appendable(path: AnyPath) -> None:
    """Require that the disk lets a regular file be appended to.

    Raises:
        StorageFailed: it does not.
    """
    with storage_failures(path):
        os.close(open_plain(path, os.O_WRONLY | os.O_APPEND))


@contextmanager
def hold_descriptor(descriptor: int) -> Iterator[int]:
    """Yield the descriptor and close it afterwards."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


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


def unlock_folders(*folders: AnyPath) -> None:
    """Restore the owner's access to these folders, which a child may have removed.

    Links are not followed. Errors are ignored: the next access reports them.
    """
    for folder in folders:
        with suppress(OSError):
            if os.lstat(folder).st_mode & 0o700 != 0o700:
                unlock(folder)


def list_entries(folder: Path) -> list[Path]:
    """Return the entries of a folder; none if it does not exist.

    `Path.glob` would treat an unreadable folder as empty.

    Raises:
        OSError: the folder cannot be read.
    """
    try:
        return [folder / name for name in os.listdir(folder)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def is_root_folder(folder: AnyPath) -> bool:
    """Return whether this folder is a Retinue root, by its content."""
    return any(os.path.lexists(f"{folder}/{mark}") for mark in ROOT_MARKS)


def is_whiteout(status: os.stat_result) -> bool:
    """Return whether this is an overlayfs whiteout (device 0:0): a lower file was removed."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def is_opaque(folder: AnyPath) -> bool:
    """Return whether an overlayfs folder hides the lower one completely."""
    try:
        return os.getxattr(folder, "user.overlay.opaque", follow_symlinks=False) == b"y"
    except OSError:
        return False
