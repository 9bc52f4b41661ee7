"""What joining needs from the outside."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from retinue.domain.join import Change, JoinFailed, JoinOutcome, Merged
from retinue.domain.result import Result
from retinue.domain.subagent import Subagent
from retinue.ports import Prepared, ProcessIdentity


class Joining(Protocol):
    """Where a subagent's work begins, and how it becomes part of its parent's.

    Every step may be repeated: an interrupted join is begun again from the front.
    """

    async def lay_out(self, subagent: Subagent) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
        """The child finds in its workspace what it starts from: what is lent to it for that, and
        what it sees through the workspace, the uppermost first.

        Raises:
            LaunchFailed: why it does not.
        """

    async def make_whole(self, subagent: Subagent) -> None:
        """So does whoever looks into the workspace from outside, with what became of it.

        Raises:
            RetinueError: why not; nothing is lost.
        """

    async def find_merged(self, subagent: Subagent) -> JoinOutcome | None:
        """How its output was merged already, if it was."""

    async def take_in(self, subagent: Subagent) -> Change:
        """What it changed, as a commit that only we have.

        Raises:
            JoinFailed: its files are not to be taken.
        """

    async def merge(self, subagent: Subagent, change: Change) -> Merged:
        """The change on top of what was joined before; nothing has moved.

        Raises:
            JoinFailed: they conflict.
        """

    async def commit(self, subagent: Subagent, merged: Merged) -> str: ...

    async def move(self, subagent: Subagent, merged: Merged, commit: str) -> JoinOutcome | None:
        """The branch has moved to the commit; None when it was moved by someone else before.

        Raises:
            JoinFailed: it cannot be moved without losing something.
        """

    async def copy(self, subagent: Subagent) -> JoinOutcome:
        """Its files lie at their destination.

        Raises:
            JoinFailed: they may not, or something is in the way.
        """

    async def keep(self, subagent: Subagent, failure: JoinFailed) -> Mapping[str, object]:
        """Where everything is that was not joined."""

    def publish(self, subagent: Subagent, result: Result) -> None:
        """The result lies in the subagent's folder."""


class Checking(Protocol):
    """Where a command looks at output before it is joined."""

    async def check_out(self, subagent: Subagent, merged: Merged | None) -> Prepared:
        """A folder with the merged tree, or its own workspace, for a command to check."""

    def note(self, prepared: Prepared, identity: ProcessIdentity) -> None: ...

    def interrupted(self, subagent: Subagent) -> tuple[ProcessIdentity, Path] | None:
        """The process of a check that an earlier supervisor had begun."""

    async def discard(self, prepared: Prepared) -> None:
        """A tree that was checked out for a command alone is gone; its output stays."""

    def said(self, prepared: Prepared) -> str:
        """The end of what a check printed."""
