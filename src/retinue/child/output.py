"""What a command prints, kept up to a limit."""

from __future__ import annotations

import os

CHUNK = 65536
LAST_WORDS = 2000


class Log:
    """One output stream of the command, in a file up to a limit and discarded beyond it."""

    def __init__(self, folder: int, name: str, limit: int) -> None:
        self.source, self.sink = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.source, False)
        self.file = create(folder, name)
        self.limit = self.room = limit
        self.cut = self.over = False
        self.end = b""

    def copy(self, chunks: int) -> None:
        """What was readable has been read, without waiting, as far as so many chunks reach."""
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

    def close(self) -> None:
        os.close(self.source)
        os.close(self.file)

    def _keep(self, data: bytes) -> None:
        try:
            write_all(self.file, data[: self.room])
            if len(data) > self.room:
                self.cut = True
                write_all(self.file, b"\n[retinue: output cut at %d bytes]\n" % self.limit)
            self.room -= len(data)
        except OSError:
            self.cut = True  # a full disk must not hold up the command


def create(folder: int, name: str) -> int:
    """A new file for its owner alone; what an earlier attempt left under that name is gone."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(name, flags, 0o600, dir_fd=folder)
    except FileExistsError:
        os.unlink(name, dir_fd=folder)
        return os.open(name, flags, 0o600, dir_fd=folder)


def write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]
