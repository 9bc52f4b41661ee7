"""Where a team meets: the table as it stands, and everything that changes it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from retinue.domain.coordination import Answer, NotNow, Table
from retinue.domain.ids import MemberId
from retinue.executors.surroundings import Surroundings
from retinue.executors.testimony import Witness
from retinue.executors.trees import Lacking


class Room:
    """Each change is told before anybody can see it."""

    def __init__(self, around: Surroundings, witness: Witness) -> None:
        members = [name for name, _ in around.members]
        self.table = Table.of(members, refine=around.team.refine)
        self.questions: tuple[str, ...] = ()  # of a member that cannot go on without an answer
        self._around = around
        self._witness = witness
        self._changed = asyncio.Event()
        self._seen: dict[MemberId, tuple[str, ...]] = {}  # by each, of the present answers
        witness.testify(self.table)

    def answer(self, member: MemberId, text: str) -> str:
        """The answer stands, with a snapshot of its author's files; its label.

        Raises:
            NotNow: this member has given all the answers it may, or the first was enough.
        """
        label = self.table.next_label(member)
        table = self.table.answered(member, Answer(label=label, text=text))
        copy = self._witness.keep_answer(member, label, text, self._around.home(member))
        self._show(label, copy)
        self._move(table)
        return label

    def vote(self, member: MemberId, choice: str) -> None:
        """Raises:
        NotNow: nobody of that name has answered, or this member has not seen every answer, or
            has given none itself: those of an earlier attempt are not on the table any more.
        """
        if self.table.seat(member).current is None:
            raise NotNow(
                "call new_answer with your own answer first; what was answered before a question "
                "or an interruption does not count any more"
            )
        if self._seen.get(member) != self.table.labels:
            raise NotNow("somebody has just answered anew; look at that answer first")
        self._move(self.table.voted(member, choice))

    def unseen(self, member: MemberId) -> bool:
        """Whether there are answers that this member does not know; from now on it does."""
        before, self._seen[member] = self._seen.get(member, ()), self.table.labels
        return before != self.table.labels

    def leave(self, member: MemberId, why: str) -> None:
        self._move(self.table.left(member, why))

    def ask(self, questions: Sequence[str]) -> None:
        """The team stops here, until somebody has answered."""
        self.questions += tuple(questions)
        self._move(self.table)

    def retell(self) -> None:
        """What was spent since the last change is told, too."""
        if self._witness.owes:
            self._witness.testify(self.table)

    def absent(self, member: MemberId) -> list[MemberId]:
        """Those of the others who will not act any more: who has left, and all but the winner."""
        over = self.table.winner == member
        return [seat.id for seat in self.table.seats if seat.id != member and (seat.gone or over)]

    @property
    def snapshots(self) -> str:
        return str(self._around.snapshots)

    async def until(self, holds: Callable[[Table], bool]) -> None:
        """The table is as wanted, or nobody can change it any more."""
        while not (holds(self.table) or self.table.over or self.questions):
            await self._changed.wait()

    def _move(self, table: Table) -> None:
        """The table is told and seen as it is now; where all agree, with who won."""
        self.table = table.decided() if table.agreed and not self.questions else table
        try:
            self._witness.testify(self.table)
        finally:  # where the disk refuses that, nobody waits for what has happened
            self._changed.set()
            self._changed = asyncio.Event()

    def _show(self, label: str, copy: Path) -> None:
        """Everybody finds the answer's files under its label."""
        if len(self.table.seats) == 1:
            return
        link = self._around.snapshots / label
        lacking = Lacking(link.parent)
        with lacking.at(link):
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)  # an earlier attempt may have had an answer of that label
            link.symlink_to(os.path.relpath(copy, link.parent))
        self._witness.lacks(f"members could not look at the files of {label}:", lacking)
