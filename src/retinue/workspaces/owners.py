"""git for the user's own working tree: its files are read and written as they have it configured.

Line endings, filters such as those of LFS, and what is ignored everywhere are theirs to say.
Hooks and monitors are not run for it all the same.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from retinue.workspaces.git import ENVIRONMENT, SETTINGS, Git, GitFailed

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


async def fast_forward(git: Git, top: Path, branch: str) -> None:
    """The branch that is checked out, and its files, are at this one.

    Raises:
        GitFailed: they are as they were: a filter that fails leaves a checkout half done.
    """
    # Their options may have it squash, and what they have it ignore is in no commit.
    words = ("merge", "--ff-only", "--no-squash", "--no-overwrite-ignore", "--quiet", "--no-stat")
    said = await git.run(top, "diff", "--name-only", "--no-renames", "-z", "HEAD", branch, "--")
    before = {name: _print(top, name) for name in said.out.split(b"\0") if name}
    try:
        await git.run(top, *words, branch)
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
