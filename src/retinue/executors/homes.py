"""The folders of a team's members: each begins as the workspace is, and the winner's becomes it."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Collection
from pathlib import Path

GIT = ".git"


def mirror(source: Path, target: Path, *, apart: Collection[Path] = ()) -> None:
    """The target holds the files of the source and no others; what is the same is not touched.

    What lies apart is not copied from the source, and not removed from the target; nor is git's
    own folder at the top of either.

    Raises:
        OSError: something cannot be read or written.
    """
    spared = {*apart, source / GIT, target / GIT}
    target.mkdir(parents=True, exist_ok=True)
    waiting = [(source, target)]
    while waiting:
        here, there = waiting.pop()
        wanted = {name: at for name, at in _entries(here).items() if here / name not in spared}
        present = _entries(there)
        for name, at in present.items():
            if there / name not in spared and not _stays(at, wanted.get(name)):
                _remove(there / name, at)
        for name, at in wanted.items():
            if stat.S_ISDIR(at.st_mode):
                (there / name).mkdir(exist_ok=True)
                waiting.append((here / name, there / name))
            elif _is_kept(at) and not (name in present and _stays(present[name], at)):
                shutil.copy2(here / name, there / name, follow_symlinks=False)


def give_git(workspace: Path, home: Path) -> None:
    """Where the workspace is a clone, so is the home: what is committed here is seen only here."""
    inner = workspace / GIT
    if inner.is_dir() and not inner.is_symlink() and not (home / GIT).exists():
        shutil.copytree(inner, home / GIT, symlinks=True)


def _entries(folder: Path) -> dict[str, os.stat_result]:
    """Every name here with what it is; links are links."""
    with os.scandir(folder) as entries:
        return {entry.name: entry.stat(follow_symlinks=False) for entry in entries}


def _is_kept(at: os.stat_result) -> bool:
    """A pipe or a socket has no content to keep."""
    return stat.S_ISREG(at.st_mode) or stat.S_ISLNK(at.st_mode)


def _stays(one: os.stat_result, other: os.stat_result | None) -> bool:
    """Whether what is there can stay for the other: a folder for a folder, a file for its copy."""
    if other is None or stat.S_ISDIR(one.st_mode) or stat.S_ISDIR(other.st_mode):
        return other is not None and stat.S_ISDIR(one.st_mode) and stat.S_ISDIR(other.st_mode)
    copied = stat.S_ISREG(one.st_mode) and one.st_mode == other.st_mode
    return copied and (one.st_size, one.st_mtime_ns) == (other.st_size, other.st_mtime_ns)


def _remove(path: Path, at: os.stat_result) -> None:
    if stat.S_ISDIR(at.st_mode):
        shutil.rmtree(path)
    else:
        path.unlink()
