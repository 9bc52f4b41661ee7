"""The steward's log file, which is rotated at start and while the steward runs."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from pathlib import Path

from retinue.core.errors import StorageFailed
from retinue.files import open_plain, write_atomic

LOG = "steward.log"
MAX_LOG = 1024 * 1024


def open_log(root: Path) -> int:
    """Open the log for appending; rotate it if it is too large."""
    descriptor = open_plain(root / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    if os.fstat(descriptor).st_size > MAX_LOG:
        _begin_anew(root, descriptor)
    return descriptor


class LogStream(io.TextIOBase):
    """Text stream to the log, which rotates it before it grows too large."""

    def __init__(self, root: Path, descriptor: int) -> None:
        self._root = root
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        data = text.encode("utf-8", "backslashreplace")
        if os.fstat(self._descriptor).st_size + len(data) > MAX_LOG:
            _begin_anew(self._root, self._descriptor)
        os.write(self._descriptor, data)
        return len(text)


def _begin_anew(root: Path, descriptor: int) -> None:
    """Copy the log to `steward.log.1` and truncate it.

    If the copy fails, the content is lost: free disk space is more important.
    """
    # Truncated, not renamed, because other processes (fork servers) have the file open.
    with suppress(OSError, StorageFailed), open(open_plain(root / LOG), "rb") as log:
        log.seek(max(0, os.fstat(log.fileno()).st_size - MAX_LOG))
        write_atomic(root / f"{LOG}.1", log.read(MAX_LOG))
    with suppress(OSError):
        os.ftruncate(descriptor, 0)


def keep_small(root: Path) -> None:
    """If standard error is the log, rotate it on further writes."""
    descriptor = sys.stderr.fileno()
    with suppress(OSError):
        if os.path.samestat(os.fstat(descriptor), os.stat(root / LOG)):
            sys.stderr = LogStream(root, descriptor)
