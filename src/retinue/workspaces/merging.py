"""Merging a change with what was joined before it: in memory, as far as files go.

Attributes of the tree say how a file is merged (`-merge`, `merge=union`), as they do for whoever
has it checked out. A driver that somebody configured is not known here, and never run.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from retinue.domain.join import CONFLICT, REFUSED, Change, JoinFailed, portions
from retinue.files import storage_failures
from retinue.workspaces.git import Git, GitFailed, Output, Where
from retinue.workspaces.importing import folders_of
from retinue.workspaces.intake import shown_path
from retinue.workspaces.trusted import TrustedRepository

ATTRIBUTES = ".gitattributes"
PLAIN = b"100"  # what the mode of a file begins with
SHOWN = 50
WORDS = ("merge-tree", "--write-tree", "-z", "--name-only", "--no-messages")


async def merge_trees(git: Git, ours: TrustedRepository, tip: str, change: Change) -> str:
    """The tree that comes of a commit and a change.

    Raises:
        JoinFailed: they are in conflict, or git cannot merge them.
        StorageFailed: the disk said no.
    """
    try:
        merged = await _merge(git, ours, tip, change)
    except GitFailed as error:
        raise JoinFailed(f"it cannot be merged: {error.message}", reason=REFUSED) from None
    tree, *files = [os.fsdecode(each) for each in merged.out.split(b"\0") if each]
    if merged.code:
        # Where a file meets a folder, git puts the file aside under a name made of its side's.
        aside = (path.removesuffix(f"~{tip}").removesuffix(f"~{change.commit}") for path in files)
        shown = tuple(shown_path(path) for path in dict.fromkeys(aside))
        raise JoinFailed(f"conflict in {', '.join(shown[:SHOWN])}", reason=CONFLICT, files=shown)
    return tree


async def _merge(git: Git, ours: TrustedRepository, tip: str, change: Change) -> Output:
    """What git said, by the attributes that the commit has for what was changed."""
    sides = (tip, change.commit)
    listed = await _attributes(git, ours, tip, change)
    if not listed:
        return await git.run(ours.where, *WORDS, *sides, accept=(0, 1))
    with storage_failures(ours.folder), tempfile.TemporaryDirectory(dir=ours.folder) as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        where = Where(git_dir=ours.folder, tree=tree, index=Path(folder) / "index")
        await git.run(where, "update-index", "-z", "--index-info", stdin=listed)
        await git.run(where, "checkout-index", "--all", "--quiet")
        # It looks for them where it is started, and nowhere where it has no tree.
        return await git.run(where, "-C", str(tree), *WORDS, *sides, accept=(0, 1))


async def _attributes(git: Git, ours: TrustedRepository, tip: str, change: Change) -> bytes:
    """The files that have attributes for what was changed, as git lists them.

    What the commit calls by another name than the change does is merged under that name.
    """
    new = ("diff-tree", "-r", "-z", "--name-only", "--no-renames", "--diff-filter=A")
    said = await git.run(ours.where, *new, f"{change.commit}^", tip)
    paths = [*change.brought, *map(os.fsdecode, said.out.split(b"\0"))]
    names = sorted({above + ATTRIBUTES for path in paths for above in folders_of(path)})
    listed = b""
    for part in portions(names):
        words = ("--literal-pathspecs", "ls-tree", "-z", "--full-tree", tip, "--", *part)
        listed += (await git.run(ours.where, *words)).out
    return b"".join(line + b"\0" for line in listed.split(b"\0") if line.startswith(PLAIN))
