"""git for the user's own working tree: its files are read and written as they have it configured.

Line endings, filters such as those of LFS, and what is ignored everywhere are theirs to say.
Hooks and monitors are not run for it all the same.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from retinue.workspaces.git import ENVIRONMENT, SETTINGS, USUAL_SECONDS, Git, GitFailed

TURN_SECONDS = 0.1  # until it is looked again whether the other one has ended
TURNS = int(USUAL_SECONDS / TURN_SECONDS)

THEIR_SETTINGS = {
    "core.symlinks",
    "core.fileMode",
    "core.autocrlf",
    "core.safecrlf",
    "core.attributesFile",
    "core.excludesFile",
}
THEIR_VARIABLES = {
    "HOME",
    "XDG_CONFIG_HOME",
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_NOSYSTEM",
    "GIT_ATTR_NOSYSTEM",
}


def owners_git(variables: Mapping[str, str]) -> Git:
    """git that reads their configuration, and finds their filters where they have them."""
    ours = {name: value for name, value in ENVIRONMENT.items() if name not in THEIR_VARIABLES}
    theirs = {name: value for name, value in variables.items() if name in THEIR_VARIABLES}
    search = [*variables.get("PATH", "").split(os.pathsep), ENVIRONMENT["PATH"]]
    path = os.pathsep.join(each for each in search if each.startswith("/"))
    return Git(
        settings={name: value for name, value in SETTINGS.items() if name not in THEIR_SETTINGS},
        environment={**ours, **theirs, "PATH": path},
    )


@asynccontextmanager
async def alone(git_dir: Path) -> AsyncIterator[int]:
    """Nobody else applies anything there, nor does a git that outlived its steward: the kernel
    holds the place for as long as somebody has this descriptor.

    Raises:
        GitFailed: the other one does not come to its end, or there is no such place.
    """
    try:
        place = os.open(git_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise GitFailed(f"{git_dir}: {error.strerror}") from error
    try:
        for _ in range(TURNS):
            if _is_taken(place):
                break
            await asyncio.sleep(TURN_SECONDS)  # the kernel tells nobody else of it
        else:
            raise GitFailed("another git has been at work there for too long")
        yield place
    finally:
        os.close(place)


def _is_taken(place: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


async def fast_forward(git: Git, top: Path, branch: str, place: int) -> None:
    """The branch that is checked out, and its files, are at this one.

    Args:
        place: which git holds on to while it is at work; see `alone`.

    Raises:
        GitFailed: they are as they were: a filter that fails leaves a checkout half done.
    """
    # Their options may have it squash, and what they have it ignore is in no commit.
    words = ("merge", "--ff-only", "--no-squash", "--no-overwrite-ignore", "--quiet", "--no-stat")
    said = await git.run(top, "diff", "--name-only", "--no-renames", "-z", "HEAD", branch, "--")
    before = {name: _print(top, name) for name in said.out.split(b"\0") if name}
    try:
        await git.run(top, *words, branch, stdin=place)  # which it does not read
    except GitFailed:
        touched = [name for name in before if _print(top, name) != before[name]]
        for name in (name for name in touched if before[name] is None):
            with suppress(OSError):
                os.unlink(os.path.join(os.fsencode(top), name))
        if kept := [name for name in touched if before[name] is not None]:
            back = ("checkout", "--quiet", "HEAD", "--pathspec-from-file=-", "--pathspec-file-nul")
            await git.run(top, "--literal-pathspecs", *back, stdin=b"\0".join(kept))
        raise


def _print(top: Path, name: bytes) -> tuple[int, int, int] | None:
    """Tells a file from any other that takes its place; None where there is none."""
    with suppress(OSError):
        found = os.lstat(os.path.join(os.fsencode(top), name))
        return found.st_ino, found.st_size, found.st_mtime_ns
    return None
