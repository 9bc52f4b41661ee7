"""Folders that others write in, watched by the kernel: nobody polls."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator

WRITTEN, CHANGED_MODE, CLOSED_AFTER_WRITING, MOVED_HERE, MADE = 0x2, 0x4, 0x8, 0x80, 0x100
CHANGED = WRITTEN | MADE | MOVED_HERE
ONLY_FOLDERS, NO_LINKS = 0x0100_0000, 0x0200_0000
OVERFLOWN = -1  # instead of a watch: the kernel has forgotten some
CHUNK = 65536
_ABOUT = struct.Struct("iIII")
_LIBC = ctypes.CDLL(None, use_errno=True)


class Inotify:
    """`fd` has something to read once anything happened that is watched for.

    Raises, when it is made and by `watch`:
        OSError: there is no such folder, or the kernel has no more to give.
    """

    def __init__(self) -> None:
        self.fd = _sound(_LIBC.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))

    def watch(self, folder: str, wanted: int) -> int:
        """The number of the watch; another one, if another folder has taken the place of this."""
        return _sound(_LIBC.inotify_add_watch(self.fd, os.fsencode(folder), wanted))

    def forget(self, watch: int) -> None:
        _LIBC.inotify_rm_watch(self.fd, watch)

    def happened(self) -> Iterator[tuple[int, bytes]]:
        """Each watch to which something happened, with the name of what it happened to."""
        data = os.read(self.fd, CHUNK)
        at = 0
        while at < len(data):
            watch, _, _, length = _ABOUT.unpack_from(data, at)
            at += _ABOUT.size + length
            yield watch, data[at - length : at].rstrip(b"\0")

    def close(self) -> None:
        os.close(self.fd)


def _sound(answer: int) -> int:
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer
