"""A member's file tools. They read what the contract shows and write where the member works.

The kernel draws the same line around an isolated child; without isolation this
check is the only one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

from retinue.executors.aside import aside
from retinue.executors.searching import files_below, find, left_out
from retinue.executors.trees import Lacking
from retinue.files import open_plain, read_plain

MOST_READ = 100_000  # characters of one answer
MOST_LISTED = 1000
LONGEST_PATTERN = 1000  # of names
SEARCH_SECONDS = 10.0
MOST_COPIED_BYTES = 256 * 1024 * 1024


class Denied(Exception):
    """The contract does not give this; the message says what it gives instead."""


class Impossible(Exception):
    """It cannot be done as asked; the message says what could."""


class Files:
    """Raises Denied, Impossible, and OSError for what the disk refuses: all of it is to be told."""

    def __init__(self, home: Path, readable: Sequence[Path]) -> None:
        self.home = Path(os.path.realpath(home))
        self._readable = [Path(os.path.realpath(path)) for path in readable]

    def read(self, path: str, offset: int = 0, limit: int = MOST_READ) -> str:
        """A text file, from a character on; what is cut off is named."""
        return passage(self._text(self._seen(path)), offset, limit)

    def write(self, path: str, content: str) -> str:
        target = self._own(path)
        _write(target, content.encode("utf-8", "replace"))
        return f"wrote {len(content)} characters to {self._shown(target)}"

    def put(self, path: str, data: bytes) -> None:
        _write(self._own(path), data)

    def edit(self, path: str, old: str, new: str) -> str:
        """One passage is replaced; it must stand in the file exactly once."""
        target = self._own(path)
        text = self._text(target)
        count = text.count(old) if old else 0
        if count != 1:
            raise Impossible(f"the old text stands {count} times in {path}; it must be once")
        _write(target, text.replace(old, new).encode("utf-8", "replace"))
        return f"replaced one passage of {self._shown(target)}"

    def listing(self, path: str = ".", pattern: str = "*") -> str:
        top = self._seen(path)
        if not top.is_dir():
            raise Impossible(f"{path} is not a folder")
        lines = []
        lacking = Lacking(top)
        for each, at in files_below(top, lacking):
            name = str(each.relative_to(top))
            if matches(name, pattern):
                lines.append(f"{name} ({at.st_size} bytes)")
            if len(lines) > MOST_LISTED:
                return "\n".join(lines[:MOST_LISTED]) + "\n[more files than are shown]"
        return "\n".join(lines or ["no files"]) + left_out(lacking)

    async def search(self, pattern: str, path: str = ".", files: str = "*") -> str:
        """Lines that match a regular expression, as file:line: text."""
        try:
            return await aside(partial(find, pattern, self._seen(path), files), SEARCH_SECONDS)
        except ValueError as why:
            raise Impossible(str(why)) from None
        except TimeoutError:
            raise Impossible(
                f"the search was stopped after {SEARCH_SECONDS:g} seconds; give a simpler pattern, "
                "or fewer files"
            ) from None

    def copy(self, source: str, target: str) -> str:
        """A file or a folder that it may read lies where it works."""
        origin = self._seen(source)
        if origin.is_file():
            self._copy(origin, target)
            return f"copied {source} to {target}"
        lacking = Lacking(origin)
        found = list(files_below(origin, lacking))
        size = sum(at.st_size for _, at in found)
        if size > MOST_COPIED_BYTES:
            raise Impossible(f"{source} has {size} bytes; copy parts of it")
        copied = 0
        for each, _ in found:
            with lacking.at(each):
                self._copy(each, f"{target}/{each.relative_to(origin)}")
                copied += 1
        return f"copied {copied} files of {source} to {target}{left_out(lacking)}"

    def sees(self, path: str) -> bool:
        """Whether it is there, and may be read."""
        try:
            return bool(self._seen(path))
        except (Denied, Impossible, OSError):
            return False

    def _copy(self, origin: Path, target: str) -> None:
        """Each place is looked at by itself: a link on the way could lead out."""
        place = self._own(target)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(str(origin), str(place))  # as they are told where they are the same
        shutil.copymode(origin, place)

    def _seen(self, path: str) -> Path:
        """Where a path leads, once it is known to be within what may be read."""
        real = self._real(path)
        if not any(real.is_relative_to(root) for root in (self.home, *self._readable)):
            places = ", ".join(str(root) for root in (self.home, *self._readable))
            raise Denied(f"{path[:200]} is outside of what you may read: {places}")
        if not real.exists():
            raise Impossible(f"there is no {path[:200]}")
        return real

    def _own(self, path: str) -> Path:
        real = self._real(path)
        if not real.is_relative_to(self.home):
            raise Denied(f"{path[:200]} is outside of what you may write: {self.home}")
        if real.is_dir():
            raise Impossible(f"{path[:200]} is a folder")
        return real

    def _real(self, path: str) -> Path:
        if "\0" in path:
            raise Impossible("a path cannot hold NUL")
        try:
            return Path(os.path.realpath(self.home / path))
        except (OSError, ValueError) as error:
            raise Impossible(f"not a usable path: {error}") from None

    def _text(self, path: Path) -> str:
        if not path.is_file():
            raise Impossible(f"{path.name} is not a file")
        return read_plain(path, MOST_COPIED_BYTES).decode("utf-8", "replace")

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(self.home))


def passage(text: str, offset: int, limit: int) -> str:
    """The text from a character on; what is cut off is named."""
    start = max(0, offset)
    part = text[start : start + min(max(1, limit), MOST_READ)]
    rest = len(text) - start - len(part)
    return part + (f"\n[{rest} more characters from offset {start + len(part)}]" if rest else "")


def matches(name: str, pattern: str) -> bool:
    """Raises:
    Impossible: that is no pattern to look for.
    """
    if len(pattern) > LONGEST_PATTERN:
        raise Impossible(f"a pattern of names has at most {LONGEST_PATTERN} characters")
    return fnmatch(name, pattern) or fnmatch(name.rpartition("/")[2], pattern)


def _write(target: Path, data: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(open_plain(target, os.O_WRONLY | os.O_CREAT, 0o666), "wb") as file:
        file.truncate()
        file.write(data)
