"""A checkout that differs little from another one: only what is different is written.

It lies over the other as a workspace lies over both, with marks for what it does not have.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from retinue.domain.join import portions
from retinue.files import storage_failures
from retinue.workspaces.git import Git, Where
from retinue.workspaces.importing import entries_of
from retinue.workspaces.intake import Changed, parsed
from retinue.workspaces.layers import ON, TREE
from retinue.workspaces.trusted import TrustedRepository

MOST = 1000  # files; with more of them a checkout of its own is the better one
PLAIN = ("000000", "100644", "100755")
INDEX, PART = "index", "part"


async def derive(
    git: Git, ours: TrustedRepository, on: Path, treeish: str, making: Path, *, indexed: bool
) -> bool:
    """Whether the folder has what a commit or a tree has besides, or without, another checkout.

    Not so where links, submodules or the kinds of names differ, or too much does, or git takes a
    name for none: then what is in the folder is of no use.

    Args:
        on: the other, which is whole.
        indexed: whether an index is made for it, too.

    Raises:
        GitFailed, StorageFailed: why it could not be made.
    """
    _begin(making, on)
    words = ("diff-tree", "-r", "-z", "--raw", "--no-renames", on.name, treeish)
    said = await git.run(ours.where, *words, accept=(0, 128))
    changed = list(parsed(said.out))
    if said.code or len(changed) > MOST or not _is_simple(changed):
        return False
    brought = [each for each in changed if not each.is_gone]
    if brought:
        where = Where(git_dir=ours.folder, tree=making / TREE, index=making / PART, passing=True)
        await git.run(where, "update-index", "-z", "--index-info", stdin=_lines(brought))
        if entries_of(making / PART) < len(brought):
            return False  # a whole checkout says which
        await git.run(where, "checkout-index", "--all", "--quiet")
        (making / PART).unlink()
    await _mark(git, ours, treeish, making / TREE, [each.path for each in changed if each.is_gone])
    if indexed:
        with storage_failures(making):
            shutil.copyfile(on / INDEX, making / INDEX)
        where = Where(git_dir=ours.folder, index=making / INDEX)
        await git.run(where, "update-index", "-z", "--index-info", stdin=_lines(changed))
    return True


def _begin(making: Path, on: Path) -> None:
    """First what it is over: nobody clears away what something is over."""
    with storage_failures(making):
        _make_folder(making / TREE)
        (making / ON).unlink(missing_ok=True)
        (making / ON).symlink_to(os.path.relpath(on, making))


def _is_simple(changed: Sequence[Changed]) -> bool:
    """Whether plain files came and went, and nothing that was a folder is none, or became one."""
    if any({each.old_mode, each.new_mode} - set(PLAIN) for each in changed):
        return False
    gone = {each.path for each in changed if each.is_gone}
    brought = {each.path for each in changed if not each.is_gone}
    within = any(above in gone for path in brought for above in _above(path))
    return not within and not any(above in brought for path in gone for above in _above(path))


async def _mark(
    git: Git, ours: TrustedRepository, treeish: str, tree: Path, gone: Collection[str]
) -> None:
    """What is gone is marked as such: a folder, where nothing is left of it."""
    folders = sorted({above for path in gone for above in _above(path)})
    left: set[str] = set()
    for part in portions(folders):
        # With -t, since git leaves out a folder once it is asked for one within.
        words = ("--literal-pathspecs", "ls-tree", "-d", "-t", "-z", "--name-only", "--full-tree")
        said = (await git.run(ours.where, *words, treeish, "--", *part)).out
        left |= {os.fsdecode(name) for name in said.split(b"\0") if name}
    with storage_failures(tree):
        for mark in {_topmost(path, left) for path in gone}:
            _make_folder((tree / mark).parent)
            os.mknod(tree / mark, stat.S_IFCHR, 0)


def _topmost(path: str, left: Collection[str]) -> str:
    return next((above for above in _above(path) if above not in left), path)


def _make_folder(folder: Path) -> None:
    """It is there, for everyone to look into, as a checkout has it."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir()
        folder.chmod(0o755)


def _above(path: str) -> Iterable[str]:
    """The folders that a path lies in, the uppermost first."""
    parts = path.split("/")
    return ("/".join(parts[:number]) for number in range(1, len(parts)))


def _lines(changed: Iterable[Changed]) -> bytes:
    return b"".join(
        b"%b %b\t%b\0" % (each.new_mode.encode(), each.new_blob.encode(), os.fsencode(each.path))
        for each in changed
    )
