"""Output of a command, kept in files up to a limit."""

from __future__ import annotations

import os

CHUNK = 65536
LAST_WORDS = 2000


class Log:
    """One output stream of the command; what exceeds the limit is discarded."""

    def __init__(self, folder: int, name: str, limit: int) -> None:
        self.source, self.sink = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.source, False)
        self.file = create(folder, name)
        self.limit = self.room = limit
        self.cut = self.over = False
        self.end = b""

    def copy(self, chunks: int) -> None:
        """Read up to so many chunks without blocking.

        The bound keeps a command that prints without pause from delaying its own deadline.
        """
        for _ in range(0 if self.over else chunks):
            try:
                data = os.read(self.source, CHUNK)
            except BlockingIOError:
                return
            if not data:
                self.over = True
                return
            self.end = (self.end + data[-LAST_WORDS:])[-LAST_WORDS:]
            if not self.cut:
                self._keep(data)

    def _keep(self, data: bytes) -> None:
        try:
            write_all(self.file, data[: self.room])
            if len(data) > self.room:
                self.cut = True
                write_all(self.file, b"\n[retinue: output cut at %d bytes]\n" % self.limit)
            self.room -= len(data)
        except OSError:
            # On a full disk the output is discarded: the command must not block.
            self.cut = True


def create(folder: int, name: str) -> int:
    """Create a file for its owner alone, in place of one that an earlier attempt left."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(name, flags, 0o600, dir_fd=folder)
    except FileExistsError:
        os.unlink(name, dir_fd=folder)
        return os.open(name, flags, 0o600, dir_fd=folder)


def write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]
