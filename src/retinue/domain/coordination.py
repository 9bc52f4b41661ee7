"""How a team comes to one answer: who has answered, who prefers what, and when it is over.

A new answer makes every vote void: nobody has compared it yet. The team has
agreed once every member that still takes part has voted on what there is now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retinue.domain.changing import changed
from retinue.domain.ids import MemberId
from retinue.domain.team import Member, Phase, choose_answer, progress, tally

MAX_ANSWERS = 4  # of one member; after that it can only vote


class NotNow(Exception):
    """A member asked for what it cannot have; the message tells it what it can do instead."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    label: str  # agent<n>.<k>: the k-th answer of the n-th member
    text: str


@dataclass(frozen=True, kw_only=True)
class Seat:
    """One member's place at the table."""

    id: MemberId
    answers: tuple[Answer, ...] = ()
    vote: MemberId | None = None
    gone: str = ""  # why it takes no further part

    @property
    def current(self) -> Answer | None:
        return self.answers[-1] if self.answers else None

    @property
    def status(self) -> str:
        if self.gone:
            return "failed" if self.current is None else "left"
        if self.vote is not None:
            return "voted"
        return "working" if self.current is None else "answered"


@dataclass(frozen=True, kw_only=True)
class Table:
    """A team as it stands. Each change gives the next table."""

    seats: tuple[Seat, ...]  # in registration order
    refine: bool = True  # False: the first answer wins, and there are no rounds
    winner: MemberId | None = None  # once it is decided; whoever acts then opens it again

    @classmethod
    def of(cls, members: Sequence[MemberId], *, refine: bool = True) -> Table:
        return cls(seats=tuple(Seat(id=each) for each in members), refine=refine)

    def seat(self, member: MemberId) -> Seat:
        return next(seat for seat in self.seats if seat.id == member)

    def next_label(self, member: MemberId) -> str:
        place = [seat.id for seat in self.seats].index(member)
        return f"agent{place + 1}.{len(self.seats[place].answers) + 1}"

    def answered(self, member: MemberId, answer: Answer) -> Table:
        """The answer stands, and whoever has voted looks again.

        Raises:
            NotNow: this member has given all the answers it may, or the first was enough.
        """
        seat = self.seat(member)
        if not self.refine and self.labels:
            raise NotNow("the first answer counts, and it has been given")
        if len(seat.answers) >= MAX_ANSWERS:
            raise NotNow(
                f"you have given {MAX_ANSWERS} answers already; vote for the best answer now"
            )
        voided = changed(self, seats=tuple(changed(each, vote=None) for each in self.seats))
        return voided._with(changed(seat, answers=(*seat.answers, answer), vote=None))

    def voted(self, member: MemberId, choice: str) -> Table:
        """The vote stands until somebody answers anew.

        Raises:
            NotNow: there is no such answer to prefer.
        """
        chosen = self._meant(choice)
        if chosen is None:
            there = ", ".join(seat.id for seat in self.seats if seat.current)
            raise NotNow(
                f"nobody named {choice[:80]!a} has answered; "
                + (f"vote for one of: {there}" if there else "give an answer first")
            )
        return self._with(changed(self.seat(member), vote=chosen))

    def left(self, member: MemberId, why: str) -> Table:
        """The member takes no further part; its answer, if it has one, stays."""
        return self._with(changed(self.seat(member), gone=why or "left", vote=None))

    def decided(self) -> Table:
        """The winner is known, if anybody has answered."""
        chosen = choose_answer(self.members, self.votes)
        return changed(self, winner=chosen.id if chosen else None)

    @property
    def members(self) -> list[Member]:
        return [
            Member(id=seat.id, answer=seat.current.text if seat.current else None, vote=seat.vote)
            for seat in self.seats
        ]

    @property
    def votes(self) -> Mapping[MemberId, int]:
        return tally(self.members)

    @property
    def labels(self) -> tuple[str, ...]:
        """Of the present answers."""
        return tuple(seat.current.label for seat in self.seats if seat.current)

    @property
    def labelled_votes(self) -> dict[str, int]:
        """The same, by the label of the answer that was preferred."""
        named = ((self.seat(id).current, count) for id, count in self.votes.items())
        return {answer.label: count for answer, count in named if answer is not None}

    @property
    def phase(self) -> Phase:
        if self.winner is not None:
            return Phase.PRESENTATION
        waits = any(seat.current is None and not seat.gone for seat in self.seats)
        return Phase.INITIAL_ANSWER if waits else Phase.ENFORCEMENT

    @property
    def percentage(self) -> int:
        """All of it once there is a winner: nobody is left to answer or to vote."""
        return 100 if self.winner is not None else progress(self.members)

    @property
    def over(self) -> bool:
        """Whether nothing can change any more: all that are left agree, or nobody is left.

        Where nobody votes, the first answer is the end.
        """
        present = [seat for seat in self.seats if not seat.gone]
        if not self.refine or len(self.seats) == 1:
            return bool(self.labels) or not present
        return all(seat.vote is not None for seat in present)

    @property
    def agreed(self) -> bool:
        """Whether it is over with a decision: those who voted, or answered where nobody votes.

        Members that all left have decided nothing, whatever they had answered.
        """
        if not self.refine or len(self.seats) == 1:
            return bool(self.labels)
        return self.over and any(not seat.gone for seat in self.seats)

    def must_act(self, member: MemberId) -> bool:
        """Whether the team waits for this member."""
        seat = self.seat(member)
        if seat.gone or self.over or seat.vote is not None:
            return False
        return self.refine or seat.current is None

    def _meant(self, choice: str) -> MemberId | None:
        for number, seat in enumerate(self.seats, start=1):
            if seat.current is None:
                continue
            names = {seat.id, seat.current.label, f"agent{number}"}
            if choice.strip() in names:
                return seat.id
        return None

    def _with(self, moved: Seat) -> Table:
        seats = tuple(moved if seat.id == moved.id else seat for seat in self.seats)
        return changed(self, seats=seats, winner=None)
