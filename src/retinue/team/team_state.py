"""Shared state of a team: the table and the operations that change it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from retinue.core.ids import MemberId
from retinue.core.voting import Answer, NotNow, Table
from retinue.team.environment import TeamEnvironment
from retinue.team.testimony_writer import TestimonyWriter
from retinue.team.tree_copy import MissingFiles


class TeamState:
    """Table of one team. Each change is in status.json before any member sees it."""

    def __init__(self, environment: TeamEnvironment, testimony: TestimonyWriter) -> None:
        members = [name for name, _ in environment.members]
        self.table = Table.for_members(members, refine=environment.team.refine)
        self.questions: tuple[str, ...] = ()  # to the parent; they stop the team
        self._environment = environment
        self._testimony = testimony
        self._changed = asyncio.Event()
        self._seen: dict[MemberId, tuple[str, ...]] = {}  # labels of the answers shown to each
        testimony.write_status(self.table)

    def answer(self, member: MemberId, text: str) -> str:
        """Record an answer with a snapshot of its author's files; return its label.

        Raises:
            NotNow: the member has no answers left, or the team has its one answer already.
        """
        label = self.table.make_next_label(member)
        # Checks first: a refused answer writes nothing.
        table = self.table.record_answer(member, Answer(label=label, text=text))
        copy = self._testimony.keep_answer(member, label, text, self._environment.find_home(member))
        self._link_snapshot(label, copy)
        self._set_table(table)
        return label

    def vote(self, member: MemberId, choice: str) -> None:
        """Record a vote.

        Raises:
            NotNow: no member of that name has answered, or this member has not answered in this
                attempt or has not seen every answer.
        """
        if self.table.find_seat(member).current is None:
            raise NotNow(
                "call new_answer with your own answer first; answers from before a question or an "
                "interruption do not count"
            )
        # Otherwise a vote could miss an answer given while the member was thinking.
        if self._seen.get(member) != self.table.labels:
            raise NotNow("there is a new answer; read it first")
        self._set_table(self.table.record_vote(member, choice))

    def mark_answers_seen(self, member: MemberId) -> bool:
        """Mark the current answers as seen; return whether any was new to this member."""
        before = self._seen.get(member, ())
        self._seen[member] = self.table.labels
        return before != self.table.labels

    def leave(self, member: MemberId, why: str) -> None:
        if len(self.table.seats) > 1:  # else the reason is the error of the result
            self._testimony.record_departure(member, why)
        self._set_table(self.table.record_departure(member, why))

    def ask(self, questions: Sequence[str]) -> None:
        """Record questions to the parent; the team stops."""
        self.questions += tuple(questions)
        self._set_table(self.table)

    def report_spending(self) -> None:
        """Write status.json if there is spending that it does not show."""
        if self._testimony.has_unwritten_spending:
            self._testimony.write_status(self.table)

    def list_absent(self, member: MemberId) -> list[MemberId]:
        """Return the other members that will not act again: those that left, or all if `member`
        has won.
        """
        over = self.table.winner == member
        return [seat.id for seat in self.table.seats if seat.id != member and (seat.gone or over)]

    @property
    def snapshots(self) -> str:
        return str(self._environment.snapshots)

    async def wait_until(self, holds: Callable[[Table], bool]) -> None:
        """Wait until the condition holds, the vote is over or there are questions."""
        while not (holds(self.table) or self.table.over or self.questions):
            await self._changed.wait()

    def _set_table(self, table: Table) -> None:
        """Write the new table and wake all waiters; decide the winner if all agree."""
        self.table = table.decide_winner() if table.agreed and not self.questions else table
        try:
            self._testimony.write_status(self.table)
        finally:
            # Also if the disk is full: a waiter must not miss the change.
            self._changed.set()
            self._changed = asyncio.Event()

    def _link_snapshot(self, label: str, copy: Path) -> None:
        """Link the answer's files under its label, for the other members."""
        if len(self.table.seats) == 1:
            return
        link = self._environment.snapshots / label
        lacking = MissingFiles(link.parent)
        with lacking.collect_errors(link):
            link.parent.mkdir(parents=True, exist_ok=True)
            # An earlier attempt may have left a link of that label.
            link.unlink(missing_ok=True)
            link.symlink_to(os.path.relpath(copy, link.parent))
        self._testimony.record_missing(f"members could not look at the files of {label}:", lacking)
