"""What a steward complains of: a file that stays small, at its start and while it runs."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from pathlib import Path

from retinue.domain.errors import StorageFailed
from retinue.files import open_plain, write_atomic

LOG = "steward.log"
MAX_LOG = 1024 * 1024


def open_log(root: Path) -> int:
    """A descriptor at the log's end. What was in one that had grown large is the earlier log."""
    descriptor = open_plain(root / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    if os.fstat(descriptor).st_size > MAX_LOG:
        _begin_anew(root, descriptor)
    return descriptor


class Diary(io.TextIOBase):
    """Writes where a descriptor leads, which is the log of a root; begins it anew in time."""

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
    """The log is empty for everyone who has it open, as the fork servers do; what was in it is
    the earlier log. Where that cannot be written it is gone: a disk that others can write to is
    worth more.
    """
    with suppress(OSError, StorageFailed), open(open_plain(root / LOG), "rb") as log:
        log.seek(max(0, os.fstat(log.fileno()).st_size - MAX_LOG))
        write_atomic(root / f"{LOG}.1", log.read(MAX_LOG))
    with suppress(OSError):
        os.ftruncate(descriptor, 0)


def keep_small(root: Path) -> None:
    """Whatever this process writes to standard error goes into a diary, where that is the log."""
    descriptor = sys.stderr.fileno()
    with suppress(OSError):
        if os.path.samestat(os.fstat(descriptor), os.stat(root / LOG)):
            sys.stderr = Diary(root, descriptor)
