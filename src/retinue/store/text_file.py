"""Text files that people edit as well: read and replaced as a whole."""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from retinue.core.errors import BadInput, IntegrityBroken, StorageFailed
from retinue.files import create

Fingerprint = tuple[int, int, int]  # modification time in nanoseconds, size, inode
TRIES = 5


def take_fingerprint(path: Path) -> Fingerprint:
    """Return the fingerprint of a file's content, without reading it.

    Raises:
        IntegrityBroken: the file is gone.
        StorageFailed: its status cannot be read.
    """
    try:
        return _make_fingerprint(path.stat())
    except OSError as error:
        raise _to_error(path, error) from None


def read_text(path: Path, limit_bytes: int) -> tuple[str, Fingerprint]:
    """Return a consistent snapshot of a file's text, line ends untouched.

    Raises:
        BadInput: too large, or not UTF-8.
        IntegrityBroken: the file is gone, or not a regular file.
        StorageFailed: it cannot be read, or another program rewrites it all the time.
    """
    for _ in range(TRIES):
        raw, before = _read(path, limit_bytes)
        # A different fingerprint means that the file changed while it was read: try again.
        if take_fingerprint(path) == before and len(raw) == before[1]:
            return _decode(raw, path), before
    raise StorageFailed(f"another program keeps rewriting {path}")


def replace_text(
    path: Path, text: str, expected: Fingerprint | None
) -> tuple[Fingerprint, bool] | None:
    """Replace a file's text atomically; readable by its owner only.

    Return None, and change nothing, if the file is no longer the expected one. Else return its
    fingerprint, and whether every later edit will have another.

    Raises:
        IntegrityBroken: the expected file is gone.
        StorageFailed: the disk refused; the old text stands.
    """
    # Always the same name: a crash leaves at most one such file, which the next write replaces.
    temporary = path.with_name(f".{path.name}.new")
    try:
        made = _write(temporary, text.encode("utf-8"))
        # As late as possible, after the slow write: a person may save the file at any time.
        if expected is not None and take_fingerprint(path) != expected:
            return None
        temporary.replace(path)
    except OSError as error:
        raise _to_error(path, error) from None
    finally:
        with suppress(OSError):  # it was renamed, or the folder is read-only
            temporary.unlink()
    return made


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power loss.

    Raises:
        StorageFailed: the disk refused.
    """
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise _to_error(folder, error) from None


def _read(path: Path, limit_bytes: int) -> tuple[bytes, Fingerprint]:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise IntegrityBroken(
                    f"{path} is not a regular file",
                    code="not_a_file",
                    hint="move it away, and restore the file from a copy",
                )
            if status.st_size > limit_bytes:
                raise BadInput(
                    f"{path}: line 1: larger than {limit_bytes // 1024} KiB", code="bad_yaml"
                )
            with open(handle, "rb", closefd=False) as file:
                return file.read(limit_bytes + 1), _make_fingerprint(status)
        finally:
            os.close(handle)
    except OSError as error:
        raise _to_error(path, error) from None


def _decode(raw: bytes, path: Path) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = 1 + raw.count(b"\n", 0, error.start)
        raise BadInput(f"{path}: line {line}: not UTF-8", code="bad_yaml") from None


def _write(path: Path, raw: bytes) -> tuple[Fingerprint, bool]:
    handle = create(path)
    with os.fdopen(handle, "wb") as file:
        file.write(raw)
        file.flush()
        # A precise time: an edit in the same tick of the kernel's clock gets the time of the tick,
        # and so another fingerprint.
        ours = time.time_ns()
        os.utime(handle, ns=(ours, ours))
        os.fsync(handle)  # it contains what people wrote: a power loss must not empty it
        made = _make_fingerprint(os.fstat(handle))
        return made, made[0] == ours  # some file systems store coarser times


def _make_fingerprint(status: os.stat_result) -> Fingerprint:
    return status.st_mtime_ns, status.st_size, status.st_ino


def _to_error(path: Path, error: OSError) -> IntegrityBroken | StorageFailed:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return IntegrityBroken(
            f"{path} is missing",
            code="file_missing",
            hint="restore it from a copy; `retinue verify` names what else is missing",
        )
    return StorageFailed(f"{path}: {error.strerror} (errno {error.errno})")
