"""Rules that a subagent's files must fulfil to be merged or copied out.

Only owned paths, no links and submodules unless the plan allows them, no repositories that git
would use wherever they are put, no large files. A secret in a file is found by `secret_values`.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from retinue.core.contract import Contract
from retinue.core.globs import matches_any
from retinue.core.join_result import POLICY, REFUSED, JoinFailed, split_paths
from retinue.workspaces.git.git_command import Git, GitTarget

MB = 1024 * 1024
SHOWN = 20
LINK, GITLINK = "120000", "160000"

# Characters that HFS+ ignores when it compares names.
_IGNORED = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
# Names by which git recognizes or configures a bare repository.
_PARTS = {"head", "objects", "refs", "commondir", "config", "config.worktree", "hooks", "info"}

BARE = "it holds a bare repository of its own"


@dataclass(frozen=True, kw_only=True)
class ChangedFile:
    path: str
    old_mode: str
    new_mode: str  # 000000 for a removed file
    old_blob: str
    new_blob: str

    @property
    def is_gone(self) -> bool:
        return self.new_mode == "000000"


def require_owned(paths: Sequence[str], contract: Contract) -> None:
    """Require that only files owned by the subagent were changed.

    Raises:
        JoinFailed: others were changed, too.
    """
    patterns = contract.outputs.owns
    astray = [path for path in paths if patterns and not matches_any(patterns, path)]
    if astray:
        raise make_policy_error("it changed files that it does not own", astray)


def require_allowed_kinds(changed: Sequence[ChangedFile], contract: Contract) -> None:
    """Require that links and submodules are brought only where the contract allows them.

    Raises:
        JoinFailed: a file is of a kind that is not allowed.
    """
    allow = contract.outputs.allow
    for mode, name, said in (
        (LINK, "links", "a symbolic link"),
        (GITLINK, "submodules", "a submodule"),
    ):
        found = [each.path for each in changed if mode in (each.old_mode, each.new_mode)]
        brought = [each.path for each in changed if each.new_mode == mode]
        # A link may be removed or replaced; a submodule may not be touched at all.
        refused = brought if mode == LINK else found
        if refused and name not in allow:
            raise make_policy_error(f"it brings {said}, which its plan does not allow", refused)


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


async def refuse_bare(
    git: Git, where: GitTarget, contract: Contract, tree: str, brought: Iterable[str]
) -> None:
    """Refuse files that turn a folder of the tree into a bare repository, or change one.

    Raises:
        GitFailed: git could not list the tree.
        JoinFailed: there is such a folder.
    """
    if "submodules" in contract.outputs.allow:
        return
    if found := await find_bare_repositories(git, where, tree, brought):
        raise make_policy_error(BARE, [folder.removesuffix("/") or "." for folder in found])


def make_policy_error(sentence: str, paths: Sequence[str]) -> JoinFailed:
    """Return an error that names the first paths."""
    shown = [format_path(path) for path in paths[:SHOWN]]
    more = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
    return JoinFailed(f"{sentence}: {', '.join(shown)}{more}", reason=POLICY, files=tuple(shown))


def make_nested_error(path: str) -> JoinFailed:
    return make_policy_error("it holds a git folder of its own", [path])


def make_size_error(most: float, paths: Sequence[str]) -> JoinFailed:
    return make_policy_error(f"it brings files of more than {most:g} MB", paths)


def format_path(path: str) -> str:
    """Return a path as printable UTF-8, whatever bytes it contains."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def raise_unreadable(path: str, error: OSError) -> NoReturn:
    """Report a folder or file of a workspace that cannot be read.

    Raises:
        JoinFailed: always.
    """
    shown = format_path(path) or "its workspace"
    raise JoinFailed(f"{shown} cannot be read: {error.strerror}", reason=REFUSED) from None
