"""Copies of what members made: for their answers, for each other, for the workspace."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

MOST_SNAPSHOT_FILES = 2000
MOST_SNAPSHOT_BYTES = 64 * 1024 * 1024
CUT = "SNAPSHOT_CUT"
GIT = ".git"
NOT_COPIED = {GIT, ".retinue"}


def snapshot(source: Path, target: Path) -> None:
    """As much of a folder as is kept with an answer; one that had to be cut says so in a file."""
    target.mkdir(parents=True, exist_ok=True)
    files, size = 0, 0
    for origin, name in _entries(source, ()):
        files, size = files + 1, size + origin.lstat().st_size
        if files > MOST_SNAPSHOT_FILES or size > MOST_SNAPSHOT_BYTES:
            (target / CUT).write_text("more than a snapshot may hold\n")
            return
        copy_file(origin, target / name)


def copy_tree(source: Path, target: Path, apart: Collection[str] = ()) -> None:
    """All files of a folder lie in the other one; those apart, and git's own, are left out."""
    target.mkdir(parents=True, exist_ok=True)
    for origin, name in _entries(source, apart):
        copy_file(origin, target / name)


def mirror(source: Path, target: Path, apart: Collection[str] = ()) -> None:
    """The other folder holds these files and no others, besides those apart."""
    wanted = {
        name: origin
        for origin, name in _entries(source, ())
        if str(target / Path(name).parts[0]) not in apart
    }
    for old, name in list(_entries(target, apart)):
        if name not in wanted:
            old.unlink()
    for name, origin in wanted.items():
        copy_file(origin, target / name)


def copy_git(workspace: Path, home: Path) -> None:
    """Where the workspace is a clone, so is the home: what is committed there is seen only there.

    It is small: what both share is read from elsewhere.
    """
    inner = workspace / GIT
    if inner.is_dir() and not inner.is_symlink() and not (home / GIT).exists():
        shutil.copytree(inner, home / GIT, symlinks=True)


def _entries(top: Path, apart: Collection[str]) -> Iterator[tuple[Path, str]]:
    """Files and links below, with their names from there; a pipe or socket has no content."""
    for folder, folders, names in os.walk(top):
        here = Path(folder)
        linked = [name for name in folders if (here / name).is_symlink()]
        folders[:] = [
            name
            for name in folders
            if name not in NOT_COPIED and name not in linked and str(here / name) not in apart
        ]
        for name in (*names, *linked):
            path = here / name
            if path.is_symlink() or path.is_file():
                yield path, str(path.relative_to(top))


def copy_file(origin: Path, place: Path) -> None:
    """A link stays a link; what stood in its place is gone."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_symlink() or place.is_file():
        place.unlink()
    elif place.is_dir():
        shutil.rmtree(place)
    shutil.copy2(origin, place, follow_symlinks=False)
