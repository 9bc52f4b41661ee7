"""Lines of files that match a regular expression."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from retinue.executors.trees import Lacking, walk
from retinue.files import read_plain

MOST_FOUND = 200
MOST_SEARCHED_BYTES = 4 * 1024 * 1024  # of one file
LONGEST_LINE = 300  # as it is shown
GIT = ".git"


def find(pattern: str, top: Path, names: str) -> str:
    """Each as file:line: text, of one file or of those of some names below a folder.

    It may take for ever: there are short patterns that do.

    Raises:
        ValueError: it is no regular expression.
    """
    wanted = _compiled(pattern)
    lacking = Lacking(top)
    found: list[str] = []
    for path, at in files_below(top, lacking):
        if not fnmatch(path.name, names) or at.st_size > MOST_SEARCHED_BYTES:
            continue
        name = path.name if path == top else path.relative_to(top)
        with lacking.at(path):
            text = read_plain(path, MOST_SEARCHED_BYTES).decode("utf-8", "replace")
            for number, line in enumerate(text.splitlines(), start=1):
                if wanted.search(line):
                    found.append(f"{name}:{number}: {line[:LONGEST_LINE]}")
                if len(found) >= MOST_FOUND:
                    return "\n".join(found) + "\n[more matches than are shown]"
    return "\n".join(found or ["no matches"]) + left_out(lacking)


def files_below(top: Path, lacking: Lacking) -> Iterator[tuple[Path, os.stat_result]]:
    """Plain files, in order of their names; what git keeps for itself is left out."""
    if top.is_file():
        yield top, top.stat()
        return
    for path, at in walk(top, lacking, but={GIT}):
        if stat.S_ISREG(at.st_mode):
            yield path, at


def left_out(lacking: Lacking) -> str:
    return f"\n[left out: {lacking}]" if lacking else ""


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except RecursionError:
        raise ValueError("not a regular expression: nested too deeply") from None
    except (re.error, OverflowError) as error:
        raise ValueError(f"not a regular expression: {error}") from None
