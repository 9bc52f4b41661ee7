"""Output of a command, kept in files up to a limit."""

from __future__ import annotations

import os

CHUNK = 65536
LAST_WORDS = 2000


class Log:
    """One output stream of the command; what exceeds the limit is discarded."""

    def __init__(
        self, folder: int, name: str, limit: int, redacted: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        """Args: redacted: texts that must not be written, longest first, and what stands there."""
        self.source, self.sink = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.source, False)
        self.file = create(folder, name)
        self.limit = self.room = limit
        self.cut = self.over = False
        self.end = b""
        self._redacted = redacted
        self._held = b""  # the last bytes, while they may be the start of a redacted text

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
            if self._redacted:
                data = self._redact(data)
            self.end = (self.end + data[-LAST_WORDS:])[-LAST_WORDS:]
            if not self.cut:
                self._keep(data)

    def finish(self) -> None:
        """Write what was held back; nothing more will be read."""
        if self._held and not self.cut:
            self._keep(self._held)
        self._held = b""

    def _redact(self, data: bytes) -> bytes:
        """Return the data that can be written now, with redacted texts replaced."""
        data = self._held + data
        for text, mark in self._redacted:
            data = data.replace(text, mark)
        # A text may be split between two reads: hold back what could be its start.
        cut = min(_find_start(data, text) for text, _ in self._redacted)
        self._held = data[cut:]
        return data[:cut]

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


def _find_start(data: bytes, text: bytes) -> int:
    """Return where the end of the data begins that is also the start of the text."""
    at = data.find(text[:1], max(0, len(data) - len(text) + 1))
    while at >= 0 and not text.startswith(data[at:]):
        at = data.find(text[:1], at + 1)
    return len(data) if at < 0 else at


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
