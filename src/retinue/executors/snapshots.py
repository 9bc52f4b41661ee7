"""Copies of what members had made when they answered."""

from __future__ import annotations

import stat
from contextlib import suppress
from pathlib import Path

from retinue.executors.trees import Lacking, copy, walk

MOST_SNAPSHOT_FILES = 2000
MOST_SNAPSHOT_BYTES = 64 * 1024 * 1024
CUT = "SNAPSHOT_CUT"
NOT_COPIED = {".git", ".retinue"}


def snapshot(source: Path, target: Path) -> Lacking:
    """As much of a folder as is kept with an answer; one that is not whole says so in a file.

    Gives what could not be copied.
    """
    lacking = Lacking(source)
    with lacking.at(source):
        target.mkdir(parents=True, exist_ok=True)
    files, size, cut = 0, 0, ""
    for path, at in walk(source, lacking, but=NOT_COPIED):
        if not (stat.S_ISREG(at.st_mode) or stat.S_ISLNK(at.st_mode)):
            continue  # a pipe or a socket has no content
        files, size = files + 1, size + at.st_size
        if files > MOST_SNAPSHOT_FILES or size > MOST_SNAPSHOT_BYTES:
            cut = "more than a snapshot may hold\n"
            break
        with lacking.at(path):
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            copy(path, place)
    if lacking:
        cut += f"left out: {lacking}\n"
    if cut:
        with suppress(OSError):  # the answer itself is worth more than this
            (target / CUT).write_bytes(cut.encode("utf-8", "replace"))
    return lacking
