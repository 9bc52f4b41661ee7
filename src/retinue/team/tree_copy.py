"""Walking and copying of file trees that may change or be unreadable meanwhile."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

MOST_NAMED = 5  # missing paths named in a message
LONGEST_NAME = 80


class MissingFiles:
    """Paths of a tree that could not be read or copied, with the reasons; false if none."""

    def __init__(self, top: Path) -> None:
        self._top = top
        self.paths: dict[Path, str] = {}

    @contextmanager
    def collect_errors(self, path: Path) -> Iterator[None]:
        """Record an error on the path instead of raising it; ignore a path that is gone."""
        try:
            yield
        except FileNotFoundError as fault:
            if os.path.lexists(path):
                self.paths[path] = describe_error(fault)
        except RecursionError:
            self.paths[path] = "it lies too deep"
        except OSError as fault:
            self.paths[path] = describe_error(fault)

    def __bool__(self) -> bool:
        return bool(self.paths)

    def __str__(self) -> str:
        """Return the first paths and the number of further ones."""
        named = [
            self._describe_path(path, why) for path, why in list(self.paths.items())[:MOST_NAMED]
        ]
        more = len(self.paths) - len(named)
        return ", ".join(named) + (f" and {more} more" if more else "")

    def _describe_path(self, path: Path, why: str) -> str:
        name = "everything" if path == self._top else str(path.relative_to(self._top))
        shown = "".join(each if each.isprintable() else "?" for each in name[:LONGEST_NAME])
        return f"{shown}{'…' if len(name) > LONGEST_NAME else ''} ({why})"


def describe_error(fault: OSError) -> str:
    return fault.strerror or str(fault)


def list_entries(
    folder: Path, lacking: MissingFiles, *, noted: Path | None = None
) -> dict[str, os.stat_result]:
    """Return the entries of a folder with their lstat results.

    Errors are recorded in `lacking` under `noted`, or under the folder itself.
    """
    found: dict[str, os.stat_result] = {}
    noted = noted or folder
    with lacking.collect_errors(noted), os.scandir(folder) as those:
        for entry in those:
            with lacking.collect_errors(noted / entry.name):
                found[entry.name] = entry.stat(follow_symlinks=False)
    return found


def walk(
    top: Path, lacking: MissingFiles, *, but: Collection[str] = (), hidden: Collection[Path] = ()
) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield all paths below that are not folders, sorted by name, with their lstat results.

    Links are not followed. Folders named in `but` and the paths in `hidden` are not entered.
    """
    # A stack instead of recursion: a hostile tree may be deeper than Python recurses.
    waiting = [top]
    while waiting:
        here = waiting.pop()
        folders = []
        for name, at in sorted(list_entries(here, lacking).items()):
            if not stat.S_ISDIR(at.st_mode):
                yield here / name, at
            elif name not in but and here / name not in hidden:
                folders.append(here / name)
        waiting += reversed(folders)


def copy(origin: Path, place: Path) -> None:
    """Copy a file or a link; on an error no partial copy is left.

    Raises:
        OSError: it cannot be read or written.
    """
    try:
        shutil.copy2(origin, place, follow_symlinks=False)
    except OSError:
        place.unlink(missing_ok=True)
        raise
