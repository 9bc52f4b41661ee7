"""What a steward complains of: a file that stays small, at its start and while it runs."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from pathlib import Path

from retinue.files import open_plain

LOG = "steward.log"
MAX_LOG = 1024 * 1024


def open_log(root: Path) -> int:
    """A descriptor at the log's end. One that has grown large is the earlier log from here on."""
    path = root / LOG
    if path.exists() and path.stat().st_size > MAX_LOG:
        path.replace(path.with_name(LOG + ".1"))
    return open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


class Diary(io.TextIOBase):
    """Writes where a descriptor leads, which is the log of a root; begins a new one in time."""

    def __init__(self, root: Path, descriptor: int) -> None:
        self._root = root
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        data = text.encode("utf-8", "backslashreplace")
        if self._size + len(data) > MAX_LOG:
            self._begin_anew()
        self._size += os.write(self._descriptor, data)
        return len(text)

    def _begin_anew(self) -> None:
        try:
            (self._root / LOG).replace(self._root / f"{LOG}.1")
            new = open_log(self._root)
        except OSError:  # what is in it is worth less than a disk that others can write to
            with suppress(OSError):
                os.ftruncate(self._descriptor, 0)
        else:
            os.dup2(new, self._descriptor)
            os.close(new)
        self._size = 0


def keep_small(root: Path) -> None:
    """Whatever this process writes to standard error goes into a diary, where that is the log."""
    descriptor = sys.stderr.fileno()
    with suppress(OSError):
        if os.path.samestat(os.fstat(descriptor), os.stat(root / LOG)):
            sys.stderr = Diary(root, descriptor)
