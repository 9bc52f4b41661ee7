"""Folders of a team's members.

Each starts as a copy of the workspace; the winner's folder is copied back. After an interruption
a member continues with its own files, unless there was a winner.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Collection
from pathlib import Path

from retinue.files import open_plain
from retinue.team.tree_copy import MissingFiles, copy, list_entries, walk

GIT = ".git"
COMPARED_BYTES = 1 << 20


def sync_folder(source: Path, target: Path, *, apart: Collection[Path] = ()) -> MissingFiles:
    """Make the target equal to the source; return what could not be copied.

    Equal files are not touched. Paths in `apart` and the top-level .git of either side are
    neither copied nor removed. What cannot be read or written stays as it is in the target.
    """
    spared = {*apart, source / GIT, target / GIT}
    lacking = MissingFiles(source)
    with lacking.collect_errors(source):
        target.mkdir(parents=True, exist_ok=True)
    waiting = [(source, target)]
    while waiting:
        here, there = waiting.pop()
        found = list_entries(here, lacking)
        present = list_entries(there, lacking, noted=here)
        # A folder that cannot be listed must not look empty: nothing in the target is removed.
        if here in lacking.paths:
            continue
        wanted = {name: at for name, at in found.items() if here / name not in spared}
        # Remove what the source does not have, except what could not be read there.
        for name, at in present.items():
            if name in wanted or there / name in spared or here / name in lacking.paths:
                continue
            with lacking.collect_errors(here / name):
                _remove(there / name, at)
        for name, at in wanted.items():
            with lacking.collect_errors(here / name):
                folder = stat.S_ISDIR(at.st_mode)
                if there / name in spared and not folder:
                    raise FileExistsError(errno.EEXIST, "the team itself uses that name")
                _copy_entry(here / name, at, there / name, present.get(name))
                if folder:
                    waiting.append((here / name, there / name))
    return lacking


def prepare_home(
    workspace: Path, home: Path, *, making: Path, apart: Collection[Path], anew: bool
) -> MissingFiles:
    """Create a member's home as a copy of the workspace; return what could not be copied.

    An existing home keeps the member's files and gets files that are new in the workspace, unless
    `anew` is set.

    Raises:
        OSError: the home could not be created. The attempt must not continue without it: copying
            back a missing home would empty the workspace.
    """
    # Lists the files that the home started with, to tell new files from removed ones.
    given = making.with_name(f".{making.name}")
    if home.is_dir() and not anew:
        return _add_new_files(workspace, home, given, {*apart, workspace / GIT})
    # Build a new home under a temporary name and rename it: an existing home is complete.
    place = home if home.is_dir() else making
    lacking = sync_folder(workspace, place, apart=apart)
    # Without this list, files that the member removes come back after an interruption.
    with lacking.collect_errors(given):
        files = [path.relative_to(place) for path, _ in walk(place, MissingFiles(place))]
        given.write_bytes(b"\0".join(map(os.fsencode, files)))
    if place == making:
        making.rename(home)
    return lacking


def give_git(workspace: Path, home: Path) -> MissingFiles:
    """Copy the workspace's .git into the home, so that the member commits to its own clone.

    Return what could not be copied.
    """
    inner = workspace / GIT
    if inner.is_dir() and not inner.is_symlink() and not (home / GIT).exists():
        return sync_folder(inner, home / GIT)
    return MissingFiles(inner)


def _add_new_files(
    workspace: Path, home: Path, given: Path, spared: Collection[Path]
) -> MissingFiles:
    """Copy files that are new in the workspace, but not those that the member removed."""
    lacking = MissingFiles(workspace)
    known: set[bytes] = set()
    with lacking.collect_errors(given):
        known.update(given.read_bytes().split(b"\0"))
    waiting = [workspace]
    while waiting:
        here = waiting.pop()
        found = list_entries(here, lacking)
        for path, at in ((here / name, at) for name, at in found.items()):
            within = path.relative_to(workspace)
            place = home / within
            if path in spared:
                continue
            if stat.S_ISDIR(at.st_mode):
                waiting.append(path)
            elif os.fsencode(within) not in known and not os.path.lexists(place):
                with lacking.collect_errors(path):
                    place.parent.mkdir(parents=True, exist_ok=True)
                    _copy_entry(path, at, place, None)
    return lacking


def _copy_entry(
    origin: Path, at: os.stat_result, place: Path, present: os.stat_result | None
) -> None:
    """Copy a file or link, or create an empty folder; ignore pipes and sockets.

    Raises:
        OSError: it cannot be read or written.
    """
    if stat.S_ISREG(at.st_mode):
        if present is not None and _is_same_file(origin, at, place, present):
            return
        # Check that it can be read before the present file is removed.
        os.close(open_plain(origin))
    folder = stat.S_ISDIR(at.st_mode)
    if present is not None and not (folder and stat.S_ISDIR(present.st_mode)):
        _remove(place, present)
    if folder:
        place.mkdir(exist_ok=True)
    elif stat.S_ISREG(at.st_mode) or stat.S_ISLNK(at.st_mode):
        copy(origin, place)


def _is_same_file(one: Path, at: os.stat_result, other: Path, present: os.stat_result) -> bool:
    """Return whether two files are equal; contents are compared, since times can be set."""
    if (at.st_mode, at.st_size, at.st_mtime_ns) != (
        present.st_mode,
        present.st_size,
        present.st_mtime_ns,
    ):
        return False
    with open(open_plain(one), "rb") as first, open(open_plain(other), "rb") as second:
        while (part := first.read(COMPARED_BYTES)) == second.read(COMPARED_BYTES):
            if not part:
                return True
    return False


def _remove(path: Path, at: os.stat_result) -> None:
    if stat.S_ISDIR(at.st_mode):
        shutil.rmtree(path)
    else:
        path.unlink()
