"""Trees of files that may change, or refuse to be looked at, while somebody goes through them."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

MOST_NAMED = 5  # of what is lacking, in words
LONGEST_NAME = 80


class Lacking:
    """What of a tree could not be had, and why; false where it was all there."""

    def __init__(self, top: Path) -> None:
        self._top = top
        self.paths: dict[Path, str] = {}

    @contextmanager
    def at(self, path: Path) -> Iterator[None]:
        """What is refused there is noted, and the rest goes on; what has just gone is no lack."""
        try:
            yield
        except FileNotFoundError as fault:
            if os.path.lexists(path):
                self.paths[path] = reason(fault)
        except RecursionError:
            self.paths[path] = "it lies too deep"
        except OSError as fault:
            self.paths[path] = reason(fault)

    def __bool__(self) -> bool:
        return bool(self.paths)

    def __str__(self) -> str:
        """The first of them, and how many more there are."""
        named = [self._named(path, why) for path, why in list(self.paths.items())[:MOST_NAMED]]
        more = len(self.paths) - len(named)
        return ", ".join(named) + (f" and {more} more" if more else "")

    def _named(self, path: Path, why: str) -> str:
        name = "everything" if path == self._top else str(path.relative_to(self._top))
        shown = "".join(each if each.isprintable() else "?" for each in name[:LONGEST_NAME])
        return f"{shown}{'…' if len(name) > LONGEST_NAME else ''} ({why})"


def reason(fault: OSError) -> str:
    return fault.strerror or str(fault)


def entries(
    folder: Path, lacking: Lacking, *, noted: Path | None = None
) -> dict[str, os.stat_result]:
    """Every name here with what it is; links are links. What is refused is noted, as being there
    or elsewhere.
    """
    found: dict[str, os.stat_result] = {}
    noted = noted or folder
    with lacking.at(noted), os.scandir(folder) as those:
        for entry in those:
            with lacking.at(noted / entry.name):
                found[entry.name] = entry.stat(follow_symlinks=False)
    return found


def walk(
    top: Path, lacking: Lacking, *, but: Collection[str] = ()
) -> Iterator[tuple[Path, os.stat_result]]:
    """All below that is no folder, in order of the names, with what it is; links are links.

    Folders of the names that are left out are not entered.
    """
    waiting = [top]
    while waiting:
        here = waiting.pop()
        folders = []
        for name, at in sorted(entries(here, lacking).items()):
            if not stat.S_ISDIR(at.st_mode):
                yield here / name, at
            elif name not in but:
                folders.append(here / name)
        waiting += reversed(folders)


def copy(origin: Path, place: Path) -> None:
    """The file, or the link, lies in another place, too: all of it, or nothing.

    Raises:
        OSError: it cannot be read or written.
    """
    try:
        shutil.copy2(origin, place, follow_symlinks=False)
    except OSError:
        place.unlink(missing_ok=True)
        raise
