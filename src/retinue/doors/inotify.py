"""Folders that others write in, watched by the kernel: nobody polls."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

IN_MODIFY, IN_MOVED_TO, IN_CREATE = 0x2, 0x80, 0x100
CHUNK = 65536


class Inotify:
    """`fd` has something to read once anything in a watched folder was written, made or moved."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def watch(self, folder: str) -> None:
        """The folder is watched, if it exists; again, if another has taken its place."""
        mask = IN_MODIFY | IN_MOVED_TO | IN_CREATE
        self._libc.inotify_add_watch(self.fd, os.fsencode(folder), mask)

    def close(self) -> None:
        os.close(self.fd)


def drained(fd: int) -> bool:
    """Whether there was anything to read; now there is nothing."""
    found = False
    with suppress(BlockingIOError):
        while os.read(fd, CHUNK):
            found = True
    return found
