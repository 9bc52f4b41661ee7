"""The folders of a team's members: each begins as the workspace is, and the winner's becomes it.

Who is interrupted goes on with the files it had, unless there was a winner.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Collection
from pathlib import Path

from retinue.executors.trees import Lacking, copy, entries, walk
from retinue.files import open_plain

GIT = ".git"
COMPARED_BYTES = 1 << 20


def mirror(source: Path, target: Path, *, apart: Collection[Path] = ()) -> Lacking:
    """The target holds the files of the source and no others; what is the same is not touched.

    What lies apart is not copied from the source, and not removed from the target; nor is git's
    own folder at the top of either. What cannot be read or written stays as the target has it,
    and is given.
    """
    spared = {*apart, source / GIT, target / GIT}
    lacking = Lacking(source)
    with lacking.at(source):
        target.mkdir(parents=True, exist_ok=True)
    waiting = [(source, target)]
    while waiting:
        here, there = waiting.pop()
        found, present = entries(here, lacking), entries(there, lacking, noted=here)
        if here in lacking.paths:
            continue
        wanted = {name: at for name, at in found.items() if here / name not in spared}
        for name, at in present.items():
            if name in wanted or there / name in spared or here / name in lacking.paths:
                continue
            with lacking.at(here / name):
                _remove(there / name, at)
        for name, at in wanted.items():
            with lacking.at(here / name):
                folder = stat.S_ISDIR(at.st_mode)
                if there / name in spared and not folder:
                    raise FileExistsError(errno.EEXIST, "the team itself uses that name")
                _bring(here / name, at, there / name, present.get(name))
                if folder:
                    waiting.append((here / name, there / name))
    return lacking


def move_in(
    workspace: Path, home: Path, *, making: Path, apart: Collection[Path], anew: bool
) -> Lacking:
    """The home is as the workspace is; or, unless it is to begin anew, as its member left it, with
    what has come to the workspace since.

    What of the workspace is not there for another reason than that is given.

    Raises:
        OSError: there is no home; whoever won without one would have removed everything.
    """
    given = making.with_name(f".{making.name}")
    if home.is_dir() and not anew:
        return _catch_up(workspace, home, given, {*apart, workspace / GIT})
    place = home if home.is_dir() else making  # a home that is there has all that could be had
    lacking = mirror(workspace, place, apart=apart)
    with lacking.at(given):  # without it, what its member removes comes back to it
        files = [path.relative_to(place) for path, _ in walk(place, Lacking(place))]
        given.write_bytes(b"\0".join(map(os.fsencode, files)))
    if place == making:
        making.rename(home)
    return lacking


def give_git(workspace: Path, home: Path) -> Lacking:
    """Where the workspace is a clone, so is the home: what is committed here is seen only here.

    What of git's own files cannot be read is given.
    """
    inner = workspace / GIT
    if inner.is_dir() and not inner.is_symlink() and not (home / GIT).exists():
        return mirror(inner, home / GIT)
    return Lacking(inner)


def _catch_up(workspace: Path, home: Path, given: Path, spared: Collection[Path]) -> Lacking:
    """What lies in the workspace is in the home, too, but for what its member removed there."""
    lacking = Lacking(workspace)
    known: set[bytes] = set()
    with lacking.at(given):
        known.update(given.read_bytes().split(b"\0"))
    waiting = [workspace]
    while waiting:
        here = waiting.pop()
        found = entries(here, lacking)
        for path, at in ((here / name, at) for name, at in found.items()):
            within = path.relative_to(workspace)
            place = home / within
            if path in spared:
                continue
            if stat.S_ISDIR(at.st_mode):
                waiting.append(path)
            elif os.fsencode(within) not in known and not os.path.lexists(place):
                with lacking.at(path):
                    place.parent.mkdir(parents=True, exist_ok=True)
                    _bring(path, at, place, None)
    return lacking


def _bring(origin: Path, at: os.stat_result, place: Path, present: os.stat_result | None) -> None:
    """The file or link is there, or an empty folder is; a pipe or a socket has nothing to bring.

    Raises:
        OSError: it cannot be read or written.
    """
    if stat.S_ISREG(at.st_mode):
        if present is not None and _same(origin, at, place, present):
            return
        os.close(open_plain(origin))  # what cannot be read replaces nothing
    folder = stat.S_ISDIR(at.st_mode)
    if present is not None and not (folder and stat.S_ISDIR(present.st_mode)):
        _remove(place, present)
    if folder:
        place.mkdir(exist_ok=True)
    elif stat.S_ISREG(at.st_mode) or stat.S_ISLNK(at.st_mode):
        copy(origin, place)


def _same(one: Path, at: os.stat_result, other: Path, present: os.stat_result) -> bool:
    """Whether one file is a copy of the other, by its contents: anybody can set a time."""
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
