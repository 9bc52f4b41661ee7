"""Import of a child's whole workspace: checked first, then hashed by an isolated git."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from retinue.core.contract import Contract
from retinue.core.join_result import POLICY, REFUSED, JoinFailed, split_paths
from retinue.core.voting import OURS
from retinue.workspaces.child_files import TreeWalk
from retinue.workspaces.git.git_command import Git, GitFailed, GitTarget, make_exclude_patterns
from retinue.workspaces.git.merge_rules import (
    GITLINK,
    MB,
    SHOWN,
    ChangedFile,
    format_path,
    make_nested_error,
    make_size_error,
    raise_unreadable,
    refuse_bare,
    require_allowed_kinds,
    require_owned,
)
from retinue.workspaces.git.task_repository import SPARSE_WORDS


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
    require_owned([each.path for each in changed], contract)
    require_allowed_kinds(changed, contract)
    await refuse_bare(git, where, contract, tree, (e.path for e in changed if not e.is_gone))
    return changed


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
            raise make_nested_error(path)


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
        raise make_size_error(most, paths)


def parse_diff(listed: bytes) -> Iterator[ChangedFile]:
    """Yield the entries of `diff-tree --raw -z`."""
    fields = listed.split(b"\0")
    for about, path in zip(fields[0::2], fields[1::2], strict=False):
        old, new, before, after, _ = about.decode().removeprefix(":").split(" ")
        yield ChangedFile(
            path=os.fsdecode(path), old_mode=old, new_mode=new, old_blob=before, new_blob=after
        )
