"""Detection of repositories inside a subagent's output, which git would use wherever it is put."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from retinue.core.join_result import split_paths
from retinue.workspaces.git.git_command import Git, GitTarget

# Characters that HFS+ ignores when it compares names.
_IGNORED = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
# Names by which git recognizes or configures a bare repository.
_PARTS = {"head", "objects", "refs", "commondir", "config", "config.worktree", "hooks", "info"}

BARE = "it holds a bare repository of its own"


def is_git_name(name: str) -> bool:
    """Return whether some file system takes the name for `.git`.

    Letter case, short names, and trailing dots and spaces count.
    """
    plain = _IGNORED.sub("", name).partition(":")[0].rstrip(" .").lower()
    return plain in (".git", "git~1")


def is_bare_layout(names: Collection[str]) -> bool:
    """Return whether git takes a folder with these entries for a git folder, in any letter case."""
    folded = {name.lower() for name in names}
    return folded >= {"head", "objects", "refs"} or folded >= {"head", "commondir"}


async def find_bare_repositories(
    git: Git, where: GitTarget, tree: str, brought: Iterable[str]
) -> list[str]:
    """Return the folders of a tree that pass for bare repositories and have new or changed files.

    Raises:
        GitFailed: git could not list the tree.
    """
    suspected = [
        folder
        for folder, names in _group_entries(brought).items()
        if _PARTS & set(map(str.lower, names))
    ]
    listed = ("--literal-pathspecs", "ls-tree", "-z", "--name-only", "--full-tree", tree)
    said = b""
    # ls-tree without paths lists the top level; the top itself cannot be named as a path.
    if "" in suspected:
        said += (await git.run(where, *listed)).out
    for part in split_paths(sorted(folder for folder in suspected if folder)):
        said += (await git.run(where, *listed, "--", *part)).out
    found = _group_by_folder(os.fsdecode(path) for path in said.split(b"\0") if path)
    return sorted(folder for folder in suspected if is_bare_layout(found.get(folder, ())))


def _group_entries(paths: Iterable[str]) -> Mapping[str, set[str]]:
    """Return the names that these paths bring into each folder; folders end in a slash."""
    entries: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        above = ""
        for name in path.split("/"):
            entries[above].add(name)
            above += f"{name}/"
    return entries


def _group_by_folder(paths: Iterable[str]) -> Mapping[str, set[str]]:
    folders: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        above, slash, name = path.rpartition("/")
        folders[above + slash].add(name)
    return folders
