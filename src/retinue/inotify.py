"""Watches on folders by inotify, instead of polling."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator

WRITTEN, CHANGED_MODE, CLOSED_AFTER_WRITING, MOVED_HERE, MADE = 0x2, 0x4, 0x8, 0x80, 0x100
CHANGED = WRITTEN | MADE | MOVED_HERE
ONLY_FOLDERS, NO_LINKS = 0x0100_0000, 0x0200_0000
OVERFLOWN = -1  # in place of a watch: the kernel has dropped events
CHUNK = 65536
_ABOUT = struct.Struct("iIII")
_LIBC = ctypes.CDLL(None, use_errno=True)


class Inotify:
    """An inotify instance; `fd` is readable once there are events.

    The constructor and `watch` raise OSError if the folder does not exist, or at the kernel's
    limit of watches.
    """

    def __init__(self) -> None:
        self.fd = _check_result(_LIBC.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))

    def watch(self, folder: str, wanted: int) -> int:
        """Watch a folder and return the watch's number; a replaced folder gets another one."""
        return _check_result(_LIBC.inotify_add_watch(self.fd, os.fsencode(folder), wanted))

    def forget(self, watch: int) -> None:
        _LIBC.inotify_rm_watch(self.fd, watch)

    def read_events(self) -> Iterator[tuple[int, bytes]]:
        """Yield each event as the watch and the name of the entry."""
        data = os.read(self.fd, CHUNK)
        at = 0
        while at < len(data):
            watch, _, _, length = _ABOUT.unpack_from(data, at)
            at += _ABOUT.size + length
            yield watch, data[at - length : at].rstrip(b"\0")

    def close(self) -> None:
        os.close(self.fd)


def _check_result(answer: int) -> int:
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer
