"""Import of a child's whole workspace: checked first, then hashed by an isolated git."""

from __future__ import annotations

import asyncio
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from retinue.core.contract import Contract
from retinue.core.globs import matches_any
from retinue.core.join_result import POLICY, REFUSED, JoinFailed, split_paths
from retinue.workspaces.child_files import TreeWalk
from retinue.workspaces.git.git_command import Git, GitFailed, GitTarget, make_exclude_patterns
from retinue.workspaces.git.task_repository import SPARSE_WORDS

# Detection of repositories inside a subagent's output, which git would use wherever it is put.

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


OURS = ".retinue"  # at the top of a workspace: its report and team folders; never imported
MB = 1024 * 1024
SHOWN = 20
LINK, GITLINK = "120000", "160000"


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


@dataclass(frozen=True, kw_only=True)
class TakenTree:
    """Tree of a workspace, and its differences from the base."""

    tree: str
    changed: list[ChangedFile]
    ignored: tuple[str, ...] = ()  # some ignored files, if nothing else has changed


async def take_in(git: Git, where: GitTarget, contract: Contract) -> TakenTree:
    """Import the workspace as it is now.

    Raises:
        JoinFailed: something in the workspace must not be taken.
    """
    workspace = where.tree
    assert workspace is not None, "a workspace has a tree"
    if workspace.is_symlink() or not workspace.is_dir():
        raise JoinFailed("its workspace is gone, or was replaced", reason=REFUSED)
    most = contract.outputs.max_file_mb
    # Look before git does: git would read nested repositories and hash huge files.
    nested, large = await asyncio.to_thread(_scan_workspace, workspace, most * MB)
    spared = [*make_exclude_patterns(contract.report_path), *make_exclude_patterns(OURS)]
    try:
        await _refuse_nested(git, where, nested)
        await _refuse_large(git, where, large, most)
        await git.run(where, *SPARSE_WORDS, "add", "-A", "--sparse", "--", ".", *spared)
        tree = (await git.run(where, "write-tree")).text
        changed = await compare_tree(git, where, contract, tree)
        ignored = () if changed else await _find_ignored(git, where, spared)
        return TakenTree(tree=tree, changed=changed, ignored=ignored)
    except GitFailed as error:
        reason = POLICY if "invalid path" in error.message else REFUSED
        raise JoinFailed(f"its files cannot be taken: {error.message}", reason=reason) from error


async def _find_ignored(git: Git, where: GitTarget, spared: Sequence[str]) -> tuple[str, ...]:
    """Return some paths that git left out: ignored ones, and files inside submodules."""
    words = ("ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z")
    said = (await git.run(where, *words, "--", ".", *spared)).out.split(b"\0")
    known = (await git.run(where, "ls-files", "--stage", "-z")).out.split(b"\0")
    links = [line.partition(b"\t")[2] for line in known if line.startswith(GITLINK.encode())]
    found = [os.fsdecode(path) for path in said if path]
    if where.tree is not None and links:
        found += await asyncio.to_thread(_list_within, where.tree, [*map(os.fsdecode, links)])
    return tuple(map(format_path, found[:SHOWN]))


def _list_within(top: Path, folders: Sequence[str]) -> list[str]:
    """Return some files in these folders at any depth, by their paths from the top."""
    found: list[str] = []
    for folder in TreeWalk(top, folders):
        files = (each for each in folder.entries if not each.is_dir(follow_symlinks=False))
        found += [folder.path + each.name for each in files]
        if len(found) >= SHOWN:
            break
    return found


async def compare_tree(
    git: Git, where: GitTarget, contract: Contract, tree: str
) -> list[ChangedFile]:
    """Return the differences of a tree from the base.

    Raises:
        GitFailed: git could not compare them.
        JoinFailed: a difference is not allowed.
    """
    words = ("diff-tree", "-r", "-z", "--raw", "--no-renames", contract.outputs.base, tree)
    changed = list(parse_diff((await git.run(where, *words)).out))
    _require_allowed(changed, contract)
    await refuse_bare(git, where, contract, tree, (e.path for e in changed if not e.is_gone))
    return changed


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


def require_owned(paths: Sequence[str], contract: Contract) -> None:
    """Require that only files owned by the subagent were changed.

    Raises:
        JoinFailed: others were changed, too.
    """
    patterns = contract.outputs.owns
    astray = [path for path in paths if patterns and not matches_any(patterns, path)]
    if astray:
        raise make_policy_error("it changed what it does not own", astray)


def _require_allowed(changed: Sequence[ChangedFile], contract: Contract) -> None:
    require_owned([each.path for each in changed], contract)
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


def make_policy_error(sentence: str, paths: Sequence[str]) -> JoinFailed:
    """Return an error that names the first paths."""
    shown = [format_path(path) for path in paths[:SHOWN]]
    more = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
    return JoinFailed(f"{sentence}: {', '.join(shown)}{more}", reason=POLICY, files=tuple(shown))


def format_path(path: str) -> str:
    """Return a path as printable UTF-8, whatever bytes it contains."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _scan_workspace(workspace: Path, most: float) -> tuple[list[str], list[str]]:
    """Return nested git folders, and files above the size limit.

    Raises:
        JoinFailed: a folder cannot be read.
    """
    nested: list[str] = []
    large: list[str] = []
    for folder in TreeWalk(workspace, on_error=raise_unreadable):
        # Any letter case: some file systems take .GIT for .git.
        inside = [name for name in folder.enter if name.lower() != ".git"]
        folder.enter[:] = [name for name in inside if folder.path + name != OURS]
        for entry in folder.entries:
            path = folder.path + entry.name
            if path == OURS:
                continue
            if entry.name.lower() == ".git":
                if path != ".git":
                    nested.append(path)
            elif entry.is_file(follow_symlinks=False) and _read_size(entry) > most:
                large.append(path)
    return nested, large


def raise_unreadable(path: str, error: OSError) -> NoReturn:
    """Report a folder or file of a workspace that cannot be read.

    Raises:
        JoinFailed: always.
    """
    shown = format_path(path) or "its workspace"
    raise JoinFailed(f"{shown} cannot be read: {error.strerror}", reason=REFUSED) from None


def _read_size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:  # removed in the meantime
        return 0


async def _refuse_nested(git: Git, where: GitTarget, nested: list[str]) -> None:
    """Refuse a repository inside the workspace unless it is ignored: git would read it."""
    for path in sorted(nested):
        folder = path.rpartition("/")[0] or path
        words = ("check-ignore", "--quiet", "--no-index", "--stdin", "-z")
        said = os.fsencode(folder) + b"\0"
        ignored = await git.run(where, *words, stdin=said, accept=(0, 1, 128))
        if ignored.code != 0:
            raise make_policy_error("it holds a git folder of its own", [path])


async def _refuse_large(git: Git, where: GitTarget, large: list[str], most: float) -> None:
    """Refuse large files that are new or changed."""
    if not large:
        return
    # diff-files trusts recorded times: refresh them, or untouched files look changed.
    await git.run(where, "update-index", "-q", "--refresh", accept=(0, 1))
    changed = ("--literal-pathspecs", "diff-files", "--name-only", "-z", "--")
    new = ("--literal-pathspecs", "ls-files", "-o", "--exclude-standard", "-z", "--")
    found = b""
    for part in split_paths(large):
        found += (await git.run(where, *changed, *part)).out
        found += (await git.run(where, *new, *part)).out
    if found:
        paths = sorted(os.fsdecode(each) for each in found.split(b"\0") if each)
        raise make_policy_error(f"it brings files of more than {most:g} MB", paths)


def parse_diff(listed: bytes) -> Iterator[ChangedFile]:
    """Yield the entries of `diff-tree --raw -z`."""
    fields = listed.split(b"\0")
    for about, path in zip(fields[0::2], fields[1::2], strict=False):
        old, new, before, after, _ = about.decode().removeprefix(":").split(" ")
        yield ChangedFile(
            path=os.fsdecode(path), old_mode=old, new_mode=new, old_blob=before, new_blob=after
        )
