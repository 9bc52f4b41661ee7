"""In-memory merge of a change into the integration branch.

Attributes in the tree choose how a file is merged (`-merge`, `merge=union`), as in a checkout.
Custom merge drivers are unknown here and never run.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from retinue.core.contract import Outputs
from retinue.core.errors import StorageFailed
from retinue.core.join_result import CONFLICT, REFUSED, Change, JoinFailed, MergedTree, split_paths
from retinue.files import storage_failures, write_atomic
from retinue.workspaces.agent_folder import read_own
from retinue.workspaces.git.git_command import (
    Git,
    GitFailed,
    GitOutput,
    GitTarget,
    open_memory_file,
    update_ref,
)
from retinue.workspaces.git.import_overlay import iter_folders
from retinue.workspaces.git.merge_rules import format_path
from retinue.workspaces.git.task_repository import TrustedRepository
from retinue.workspaces.git.user_repository import OUR_NAME, make_author
from retinue.workspaces.owned_files import own_folder

ATTRIBUTES = ".gitattributes"
PLAIN = b"100"  # prefix of the modes of regular files
SHOWN = 50
WORDS = ("merge-tree", "--write-tree", "-z", "--name-only", "--no-messages")


async def merge_trees(git: Git, ours: TrustedRepository, tip: str, change: Change) -> str:
    """Merge a change into a commit and return the resulting tree.

    A change that continues merged output is merged with that as the common ancestor. The branch
    has it as a commit of its own, which git could not relate to it.

    Raises:
        JoinFailed: they conflict, or git cannot merge them.
        StorageFailed: the disk refused.
    """
    try:
        if change.continued:
            tip = await _relate(git, ours, tip, change.continued)
        merged = await _merge(git, ours, tip, change)
    except GitFailed as error:
        raise JoinFailed(f"it cannot be merged: {error.message}", reason=REFUSED) from None
    tree, *files = [os.fsdecode(each) for each in merged.out.split(b"\0") if each]
    if merged.code:
        # When a file conflicts with a folder, git appends "~<side>" to the name of the file.
        aside = (path.removesuffix(f"~{tip}").removesuffix(f"~{change.commit}") for path in files)
        shown = tuple(format_path(path) for path in dict.fromkeys(aside))
        raise JoinFailed(f"conflict in {', '.join(shown[:SHOWN])}", reason=CONFLICT, files=shown)
    return tree


async def _relate(git: Git, ours: TrustedRepository, tip: str, ancestor: str) -> str:
    """Return a commit with the files of the tip and this single parent; no branch has it."""
    words = ("commit-tree", f"{tip}^{{tree}}", "-p", ancestor)
    who = make_author(OUR_NAME)
    return (await git.run(ours.where, *words, stdin=b"", environment=who)).text


async def _merge(git: Git, ours: TrustedRepository, tip: str, change: Change) -> GitOutput:
    """Run the merge with the attributes that the commit has for the changed files."""
    sides = (tip, change.commit)
    listed = await _list_attributes(git, ours, tip, change)
    if not listed:
        return await git.run(ours.where, *WORDS, *sides, accept=(0, 1))
    # git reads attributes from a working tree only, so check out just the attribute files.
    with storage_failures(ours.folder), tempfile.TemporaryDirectory(dir=ours.folder) as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        where = GitTarget(git_dir=ours.folder, tree=tree, index=Path(folder) / "index")
        await git.run(where, "update-index", "-z", "--index-info", stdin=listed)
        await git.run(where, "checkout-index", "--all", "--quiet")
        # git looks for attributes below the folder it is started in.
        return await git.run(where, "-C", str(tree), *WORDS, *sides, accept=(0, 1))


async def _list_attributes(git: Git, ours: TrustedRepository, tip: str, change: Change) -> bytes:
    """Return the attribute files that apply to the changed files, in the format of ls-tree.

    Files that the branch has renamed are merged under their new names, so these count, too.
    """
    new = ("diff-tree", "-r", "-z", "--name-only", "--no-renames", "--diff-filter=A")
    said = await git.run(ours.where, *new, f"{change.commit}^", tip)
    paths = [*change.brought, *map(os.fsdecode, said.out.split(b"\0"))]
    names = sorted({above + ATTRIBUTES for path in paths for above in iter_folders(path)})
    listed = b""
    for part in split_paths(names):
        words = ("--literal-pathspecs", "ls-tree", "-z", "--full-tree", tip, "--", *part)
        listed += (await git.run(ours.where, *words)).out
    return b"".join(line + b"\0" for line in listed.split(b"\0") if line.startswith(PLAIN))


class Branch:
    """The integration branch: moved by compare-and-swap, and never so that a commit is lost."""

    def __init__(
        self, git: Git, ours: TrustedRepository, repository: Path, outputs: Outputs
    ) -> None:
        self._git = git
        self._ours = ours
        self._theirs = GitTarget(git_dir=repository)
        self._outputs = outputs
        self._note = ours.folder / "joined"  # the commit to which Retinue last moved it

    async def find(self) -> tuple[str, str]:
        """Return the branch's commit, empty if there is none, and where it is checked out."""
        words = ("for-each-ref", "--format=%(objectname) %(worktreepath)", self._outputs.branch)
        tip, _, place = (await self._git.run(self._theirs, *words)).text.partition(" ")
        return tip, place.strip()

    async def check_ready(self) -> str:
        """Return the branch's commit after checking that it contains everything joined before.

        Raises:
            JoinFailed: the branch is checked out, or was removed or rewritten.
        """
        tip, elsewhere = await self.find()
        if elsewhere:
            # Moving a checked-out branch would make its working tree look modified.
            branch = self._outputs.branch
            raise JoinFailed(f"{branch} is checked out in {elsewhere!a}", reason=REFUSED)
        last = read_own(self._note).decode()
        if last in ("", tip):
            return tip
        # Without an integration order, the user may have merged the branch and deleted it.
        if await self._is_ancestor(last, tip) if tip else not self._outputs.in_order:
            return tip
        raise self._make_rewritten_error()

    async def move(self, merged: MergedTree, commit: str, reason: str) -> bool:
        """Move the branch to the commit; return False if something else moved it in the meantime.

        Raises:
            JoinFailed: it cannot be moved without losing a commit.
        """
        await self.send_objects(commit, merged.tip, known=merged.has_branch)
        # Compare-and-swap: git refuses if the branch is not where the merge started. All zeros
        # mean that the branch must not exist.
        before = merged.tip if merged.has_branch else "0" * len(commit)
        branch = self._outputs.branch
        words = ("--no-deref", "-m", reason, branch, commit, before)
        try:
            await update_ref(self._git, self._theirs, *words, ref=branch)
        except GitFailed as error:
            tip, _ = await self.find()
            if tip == (merged.tip if merged.has_branch else ""):
                raise JoinFailed(error.message, reason=REFUSED) from None
            if merged.has_branch and not (tip and await self._is_ancestor(merged.tip, tip)):
                raise self._make_rewritten_error() from None
            return False
        with suppress(StorageFailed):  # the branch has moved, even if the note cannot be written
            write_atomic(self._note, commit.encode())
        return True

    async def keep(self, ref: str, commit: str) -> None:
        """Store a commit in the user's repository under a ref that is not a branch."""
        await self.send_objects(commit, self._outputs.base)
        await update_ref(self._git, self._theirs, ref, commit, ref=ref)

    async def send_objects(self, commit: str, tip: str, *, known: bool = False) -> None:
        """Copy the objects of a commit that the user's repository lacks.

        Args:
            known: whether that repository certainly has those of the tip.
        """
        if not known:
            there = await self._git.run(self._theirs, "cat-file", "-e", tip, accept=(0, 1, 128))
            known = there.code == 0
        asked = f"{commit}\n^{tip}{'' if known else '^@'}\n".encode()
        words = ("pack-objects", "--revs", "--stdout", "-q", "--delta-base-offset")
        with open_memory_file() as pack:
            await self._git.run(self._ours.where, *words, stdin=asked, stdout=pack.fileno())
            pack.seek(0)
            # Objects arrive before any ref moves: no ref ever names a missing commit.
            await self._git.run(self._theirs, "unpack-objects", "-q", stdin=pack.fileno())
        # With core.fsyncMethod=batch, git reports no error if it cannot move an object to its
        # place. The commit may be there without its files, so look for all of them.
        words = ("rev-list", "--objects", "--quiet", "--missing=print", "--stdin")
        if missing := (await self._git.run(self._theirs, *words, stdin=asked)).text.splitlines():
            repository = self._theirs.git_dir
            raise GitFailed(
                f"git did not write {len(missing)} objects of the merge into {repository}",
                hint="its disk may be full, or its folders not writable; mend that, then repeat",
            )

    async def _is_ancestor(self, old: str, new: str) -> bool:
        words = ("merge-base", "--is-ancestor", old, new)
        return (await self._git.run(self._ours.where, *words, accept=(0, 1))).code == 0

    def _make_rewritten_error(self) -> JoinFailed:
        words = f"{self._outputs.branch} was rewritten or removed outside of Retinue"
        return JoinFailed(words, reason=REFUSED)


PATCH = "changes.patch"


async def write_patch(git: Git, ours: GitTarget, artifacts: Path, commit: str) -> None:
    own_folder(artifacts)
    new = artifacts / f".{PATCH}.new"
    words = ("diff-tree", "-p", "--binary", "--full-index", "--no-ext-diff", "--no-textconv",
             "--no-commit-id", f"{commit}^", commit)  # fmt: skip
    with storage_failures(new), _create_file(new) as file:
        await git.run(ours, *words, stdout=file.fileno())
        new.replace(artifacts / PATCH)


def _create_file(path: Path) -> BinaryIO:
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    return open(os.open(path, flags, 0o600), "wb")
