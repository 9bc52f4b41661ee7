"""A member's file tools. They read what the contract shows and write where the member works.

The kernel draws the same line around an isolated child; without isolation this
check is the only one.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

MOST_READ = 100_000  # characters of one answer
MOST_LISTED = 1000
MOST_FOUND = 200
MOST_SEARCHED_BYTES = 4 * 1024 * 1024  # of one file
MOST_COPIED_BYTES = 256 * 1024 * 1024


class Denied(Exception):
    """The contract does not give this; the message says what it gives instead."""


class Impossible(Exception):
    """It cannot be done as asked; the message says what could."""


class Files:
    def __init__(self, home: Path, readable: Sequence[Path]) -> None:
        self.home = Path(os.path.realpath(home))
        self._readable = [Path(os.path.realpath(path)) for path in readable]

    def read(self, path: str, offset: int = 0, limit: int = MOST_READ) -> str:
        """A text file, from a character on; what is cut off is named."""
        text = self._text(self._seen(path))
        start = max(0, offset)
        part = text[start : start + min(max(1, limit), MOST_READ)]
        rest = len(text) - start - len(part)
        return part + (
            f"\n[{rest} more characters from offset {start + len(part)}]" if rest else ""
        )

    def write(self, path: str, content: str) -> str:
        target = self._own(path)
        with _told(path):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content, errors="replace")
        return f"wrote {len(content)} characters to {self._shown(target)}"

    def put(self, path: str, data: bytes) -> None:
        target = self._own(path)
        with _told(path):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)

    def edit(self, path: str, old: str, new: str) -> str:
        """One passage is replaced; it must stand in the file exactly once."""
        target = self._own(path)
        text = self._text(target)
        count = text.count(old) if old else 0
        if count != 1:
            raise Impossible(f"the old text stands {count} times in {path}; it must be once")
        with _told(path):
            target.write_text(text.replace(old, new), errors="replace")
        return f"replaced one passage of {self._shown(target)}"

    def listing(self, path: str = ".", pattern: str = "*") -> str:
        top = self._seen(path)
        if not top.is_dir():
            raise Impossible(f"{path} is not a folder")
        lines = []
        for each in _walk(top):
            name = str(each.relative_to(top))
            if fnmatch(name, pattern) or fnmatch(each.name, pattern):
                lines.append(f"{name} ({each.lstat().st_size} bytes)")
            if len(lines) > MOST_LISTED:
                return "\n".join(lines[:MOST_LISTED]) + "\n[more files than are shown]"
        return "\n".join(lines) or "no files"

    def search(self, pattern: str, path: str = ".", files: str = "*") -> str:
        """Lines that match a regular expression, as file:line: text."""
        try:
            wanted = re.compile(pattern)
        except re.error as error:
            raise Impossible(f"not a regular expression: {error}") from None
        top = self._seen(path)
        found: list[str] = []
        for each in [top] if top.is_file() else _walk(top):
            if not fnmatch(each.name, files) or each.lstat().st_size > MOST_SEARCHED_BYTES:
                continue
            name = each.name if each == top else each.relative_to(top)
            for number, line in enumerate(self._text(each).splitlines(), start=1):
                if wanted.search(line):
                    found.append(f"{name}:{number}: {line[:300]}")
                if len(found) >= MOST_FOUND:
                    return "\n".join(found) + "\n[more matches than are shown]"
        return "\n".join(found) or "no matches"

    def copy(self, source: str, target: str) -> str:
        """A file or a folder that it may read lies where it works."""
        origin = self._seen(source)
        if origin.is_file():
            self._copy(origin, target)
            return f"copied {source} to {target}"
        found = list(_walk(origin))
        size = sum(each.lstat().st_size for each in found)
        if size > MOST_COPIED_BYTES:
            raise Impossible(f"{source} has {size} bytes; copy parts of it")
        for each in found:
            self._copy(each, f"{target}/{each.relative_to(origin)}")
        return f"copied {len(found)} files of {source} to {target}"

    def _copy(self, origin: Path, target: str) -> None:
        """Each place is looked at by itself: a link on the way could lead out."""
        place = self._own(target)
        with _told(target):
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(origin, place)
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
        with _told(path.name):
            return path.read_bytes()[:MOST_COPIED_BYTES].decode("utf-8", "replace")

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(self.home))


class _told:
    """What the file system refuses is told to the member, who may do something else."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, fault: BaseException | None, trace: object) -> None:
        if isinstance(fault, OSError):
            raise Impossible(f"{self._name[:200]}: {fault.strerror}") from fault


def _walk(top: Path) -> Iterator[Path]:
    """Plain files below, in order of their names; what git keeps for itself is left out."""
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(name for name in folders if name != ".git")
        for name in sorted(names):
            path = Path(folder, name)
            if path.is_file() and not path.is_symlink():
                yield path
