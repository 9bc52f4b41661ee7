"""Copies of context paths, for machines where a child cannot mount.

Programs that search a folder do not follow links, so small paths are copied. A large path becomes
a link; the prompt and the contract name its target.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Sequence

# Limits for all paths of one child together.
MOST_FILES = 10_000
MOST_BYTES = 64 * 1024 * 1024
PART = 1 << 20
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class TooLarge(Exception):
    """The paths exceed the limits of what is copied."""


class Allowance:
    """Number of files and bytes that may still be copied."""

    def __init__(self) -> None:
        self._files, self._bytes = MOST_FILES, MOST_BYTES

    def take(self, size: int) -> None:
        """Raises:
        TooLarge: the limits are exceeded.
        """
        self._files -= 1
        self._bytes -= size
        if self._files < 0 or self._bytes < 0:
            raise TooLarge


def copy_or_link(views: Sequence[tuple[str, str]], hidden: Collection[str]) -> None:
    """Put a copy of each path in its place, or a link to it.

    Raises:
        OSError: neither could be made.
    """
    allowance = Allowance()
    for place, path in sorted(views):
        above = os.path.dirname(place)
        # The place lies within a path that is a link already, and shows it.
        if os.path.realpath(above) != above:
            continue
        remove(place)
        os.makedirs(above, exist_ok=True)
        try:
            _copy(path, place, hidden, allowance)
        except (OSError, TooLarge, RecursionError):
            remove(place)
            os.symlink(path, place)


def remove(place: str) -> None:
    """Remove a file, a link or a whole folder; no link is followed."""
    try:
        mode = os.lstat(place).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(mode):
        os.unlink(place)
        return
    os.chmod(place, 0o700)
    for name in os.listdir(place):
        remove(f"{place}/{name}")
    os.rmdir(place)


def _copy(path: str, place: str, hidden: Collection[str], allowance: Allowance) -> None:
    """Raises:
    OSError: something cannot be read or written.
    TooLarge: the limits are exceeded.
    """
    status = os.lstat(path)
    allowance.take(status.st_size if stat.S_ISREG(status.st_mode) else 0)
    if stat.S_ISDIR(status.st_mode):
        os.mkdir(place, 0o755)
        for name in os.listdir(path):
            if f"{path}/{name}" not in hidden:
                _copy(f"{path}/{name}", f"{place}/{name}", hidden, allowance)
    elif stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(path), place)
    elif stat.S_ISREG(status.st_mode):
        _copy_file(path, place, 0o444 | status.st_mode & 0o111)


def _copy_file(path: str, place: str, mode: int) -> None:
    source = os.open(path, FILE)
    try:
        target = os.open(place, NEW, mode)
        try:
            while part := os.read(source, PART):
                while part:
                    part = part[os.write(target, part) :]
        finally:
            os.close(target)
    finally:
        os.close(source)
