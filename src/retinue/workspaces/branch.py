"""The branch that the work of a task is joined on, in the repository of its user."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from retinue.domain.contract import Outputs
from retinue.domain.errors import StorageFailed
from retinue.domain.join import REFUSED, JoinFailed, Merged
from retinue.files import write_atomic
from retinue.workspaces.git import Git, GitFailed, Where, in_memory
from retinue.workspaces.sessions import read_own
from retinue.workspaces.trusted import TrustedRepository


class Branch:
    """Moved by compare-and-swap, and never to where it would lose what anybody put on it."""

    def __init__(
        self, git: Git, ours: TrustedRepository, repository: Path, outputs: Outputs
    ) -> None:
        self._git = git
        self._ours = ours
        self._theirs = Where(git_dir=repository)
        self._outputs = outputs
        self._note = ours.folder / "joined"  # the commit that it was last moved to by us

    async def find(self) -> tuple[str, str]:
        """Where it stands, empty when there is none, and where it is checked out."""
        words = ("for-each-ref", "--format=%(objectname) %(worktreepath)", self._outputs.branch)
        tip, _, place = (await self._git.run(self._theirs, *words)).text.partition(" ")
        return tip, place.strip()

    async def ready(self) -> str:
        """Where it stands; it can be moved on from there, and has all that was joined before.

        Raises:
            JoinFailed: someone works on it, took it away or wrote it anew.
        """
        tip, elsewhere = await self.find()
        if elsewhere:
            branch = self._outputs.branch
            raise JoinFailed(f"{branch} is checked out in {elsewhere!a}", reason=REFUSED)
        last = read_own(self._note).decode()
        if last in ("", tip):
            return tip
        # Whoever integrates one by one may have merged the branch and be done with it.
        if await self._follows(last, tip) if tip else not self._outputs.in_order:
            return tip
        raise self._rewritten()

    async def move(self, merged: Merged, commit: str, reason: str) -> bool:
        """Whether it is at this commit; if not, someone moved it meanwhile.

        Raises:
            JoinFailed: it cannot be moved without losing something.
        """
        await self.hand_over(commit, merged.tip, known=merged.known)
        before = merged.tip if merged.known else "0" * len(commit)
        words = ("update-ref", "--no-deref", "-m", reason, self._outputs.branch, commit, before)
        try:
            await self._git.run(self._theirs, *words)
        except GitFailed as error:
            tip, _ = await self.find()
            if tip == (merged.tip if merged.known else ""):
                raise JoinFailed(error.message, reason=REFUSED) from None
            if merged.known and not (tip and await self._follows(merged.tip, tip)):
                raise self._rewritten() from None
            return False
        with suppress(StorageFailed):  # it has moved, whatever the disk says of our note
            write_atomic(self._note, commit.encode())
        return True

    async def keep(self, ref: str, commit: str) -> None:
        """The user's repository has a commit, under a name beside its branches."""
        await self.hand_over(commit, self._outputs.base)
        await self._git.run(self._theirs, "update-ref", ref, commit)

    async def hand_over(self, commit: str, tip: str, *, known: bool = False) -> None:
        """The user's repository has the objects of a commit that it does not have yet.

        Args:
            known: whether it has those of the tip, for sure.
        """
        if not known:
            there = await self._git.run(self._theirs, "cat-file", "-e", tip, accept=(0, 1, 128))
            known = there.code == 0
        asked = f"{commit}\n^{tip}{'' if known else '^@'}\n".encode()
        words = ("pack-objects", "--revs", "--stdout", "-q", "--delta-base-offset")
        with in_memory() as pack:
            await self._git.run(self._ours.where, *words, stdin=asked, stdout=pack.fileno())
            pack.seek(0)
            await self._git.run(self._theirs, "unpack-objects", "-q", stdin=pack.fileno())

    async def _follows(self, old: str, new: str) -> bool:
        words = ("merge-base", "--is-ancestor", old, new)
        return (await self._git.run(self._ours.where, *words, accept=(0, 1))).code == 0

    def _rewritten(self) -> JoinFailed:
        words = f"{self._outputs.branch} was rewritten or removed by someone else"
        return JoinFailed(words, reason=REFUSED)
