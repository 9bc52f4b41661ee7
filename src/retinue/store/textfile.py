"""A text file that people edit too: read whole, replaced whole, never half of either."""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from retinue.domain.errors import BadInput, IntegrityBroken, StorageFailed
from retinue.files import create

Fingerprint = tuple[int, int, int]  # modification time in nanoseconds, size, inode
TRIES = 5


def fingerprint(path: Path) -> Fingerprint:
    """Which content a file has, as far as the file system can tell without reading it.

    Raises:
        IntegrityBroken: the file is gone.
        StorageFailed: it cannot be looked at.
    """
    try:
        return _print(path.stat())
    except OSError as error:
        raise _failure(path, error) from None


def read_text(path: Path, limit_bytes: int) -> tuple[str, Fingerprint]:
    """A file's whole text, as it stood at one moment, line ends untouched.

    Raises:
        BadInput: too large, or not UTF-8.
        IntegrityBroken: the file is gone, or is no file.
        StorageFailed: it cannot be read, or is rewritten without pause.
    """
    for _ in range(TRIES):
        raw, before = _read(path, limit_bytes)
        if fingerprint(path) == before and len(raw) == before[1]:
            return _decode(raw, path), before
    raise StorageFailed(f"{path} is being rewritten by another program without pause")


def replace_text(
    path: Path, text: str, expected: Fingerprint | None
) -> tuple[Fingerprint, bool] | None:
    """The file has this text, or the old one: at no moment anything else. For its owner alone.

    None, and nothing changed, when the file is no longer the expected one. Else its
    fingerprint, and whether every edit from now on gives it another.

    Raises:
        IntegrityBroken: the expected file is gone.
        StorageFailed: the disk refused; the old text stands.
    """
    # One name for good: a crash leaves at most one such file, which the next write replaces.
    temporary = path.with_name(f".{path.name}.new")
    try:
        made = _write(temporary, text.encode("utf-8"))
        if expected is not None and fingerprint(path) != expected:
            return None
        temporary.replace(path)
    except OSError as error:
        raise _failure(path, error) from None
    finally:
        with suppress(OSError):  # it has become the file, or no folder takes a change
            temporary.unlink()
    return made


def sync_folder(folder: Path) -> None:
    """The names in a folder survive a power cut.

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
        raise _failure(folder, error) from None


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
                return file.read(limit_bytes + 1), _print(status)
        finally:
            os.close(handle)
    except OSError as error:
        raise _failure(path, error) from None


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
        # An edit in the same tick of the kernel's clock has that tick's time, and not this one.
        ours = time.time_ns()
        os.utime(handle, ns=(ours, ours))
        os.fsync(handle)  # people's words are in it: a power cut must not empty it
        made = _print(os.fstat(handle))
        return made, made[0] == ours  # some file systems keep less of it


def _print(status: os.stat_result) -> Fingerprint:
    return status.st_mtime_ns, status.st_size, status.st_ino


def _failure(path: Path, error: OSError) -> IntegrityBroken | StorageFailed:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return IntegrityBroken(
            f"{path} is missing",
            code="file_missing",
            hint="restore it from a copy; `retinue verify` names what else is missing",
        )
    return StorageFailed(f"{path}: {error.strerror} (errno {error.errno})")
