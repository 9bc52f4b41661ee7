"""Copies of what members had made when they answered."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

MOST_SNAPSHOT_FILES = 2000
MOST_SNAPSHOT_BYTES = 64 * 1024 * 1024
CUT = "SNAPSHOT_CUT"
NOT_COPIED = {".git", ".retinue"}


def snapshot(source: Path, target: Path) -> None:
    """As much of a folder as is kept with an answer; one that had to be cut says so in a file."""
    target.mkdir(parents=True, exist_ok=True)
    files, size = 0, 0
    for origin, name in _entries(source):
        files, size = files + 1, size + origin.lstat().st_size
        if files > MOST_SNAPSHOT_FILES or size > MOST_SNAPSHOT_BYTES:
            (target / CUT).write_text("more than a snapshot may hold\n")
            return
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(origin, target / name, follow_symlinks=False)


def _entries(top: Path) -> Iterator[tuple[Path, str]]:
    """Files and links below, with their names from there; a pipe or socket has no content."""
    for folder, folders, names in os.walk(top):
        here = Path(folder)
        linked = [name for name in folders if (here / name).is_symlink()]
        folders[:] = [name for name in folders if name not in NOT_COPIED and name not in linked]
        for name in (*names, *linked):
            path = here / name
            if path.is_symlink() or path.is_file():
                yield path, str(path.relative_to(top))
