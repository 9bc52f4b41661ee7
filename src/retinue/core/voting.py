"""Voting in a team: answers, votes and the decision on one answer.

A new answer voids all votes, because no member has compared it yet. The team has
agreed once every remaining member has voted on the current answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from retinue.core.data_structures import replace_fields
from retinue.core.ids import MemberId

SNAPSHOTS, TEMPORARY = "snapshots", "temp"  # folders that the team uses in its workspace
WINNER = "winner"  # link among the snapshots to the winner's folder
OURS = ".retinue"  # folder in a workspace that is never merged or copied out of it


class Phase(StrEnum):
    INITIAL_ANSWER = "initial_answer"
    ENFORCEMENT = "enforcement"  # members vote; no answer is final
    PRESENTATION = "presentation"  # a winner was chosen


@dataclass(frozen=True, kw_only=True)
class Member:
    id: MemberId
    answer: str | None
    vote: MemberId | None = None


def choose_answer(members: Sequence[Member], votes: Mapping[MemberId, int]) -> Member | None:
    """Return the member with the most-voted answer; ties go to registration order.

    `members` is in registration order. A member without an answer never wins.
    """
    # max() returns the first of several maxima, which is the earliest registered member.
    answered = [member for member in members if member.answer is not None]
    return max(answered, key=lambda member: votes.get(member.id, 0), default=None)


def count_votes(members: Sequence[Member]) -> Mapping[MemberId, int]:
    """Return the number of votes per answered member; other votes are ignored."""
    answered = _list_answered(members)
    votes = (member.vote for member in members if member.vote is not None)
    return Counter(vote for vote in votes if vote in answered)


def compute_progress(members: Sequence[Member]) -> int:
    """Return the progress from 0 to 100: half for answers, half for votes.

    The value is rounded down: 100 means that every member has answered and voted.
    """
    if not members:
        return 0
    return 50 * (len(_list_answered(members)) + sum(count_votes(members).values())) // len(members)


def _list_answered(members: Sequence[Member]) -> set[MemberId]:
    return {member.id for member in members if member.answer is not None}


MAX_ANSWERS = 4  # per member; after that it can only vote


class NotNow(Exception):
    """Refusal of a member's answer or vote; the message says what it can do instead."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    label: str  # agent<n>.<k> is the k-th answer of the n-th member
    text: str


@dataclass(frozen=True, kw_only=True)
class Seat:
    """One member's answers and vote."""

    id: MemberId
    answers: tuple[Answer, ...] = ()
    vote: MemberId | None = None
    gone: str = ""  # why it left; empty: it still takes part

    @property
    def current(self) -> Answer | None:
        return self.answers[-1] if self.answers else None

    @property
    def status(self) -> str:
        if self.gone:
            return "failed" if self.current is None else "left"
        if self.current is not None:
            return "answered"  # also after it has voted
        return "working" if self.vote is None else "voted"


@dataclass(frozen=True, kw_only=True)
class Table:
    """Immutable state of a team; each change returns a new table."""

    seats: tuple[Seat, ...]  # in registration order
    refine: bool = True  # False: the first answer wins and there is no voting
    winner: MemberId | None = None  # set once decided; any later change clears it

    @classmethod
    def for_members(cls, members: Sequence[MemberId], *, refine: bool = True) -> Table:
        return cls(seats=tuple(Seat(id=each) for each in members), refine=refine)

    def find_seat(self, member: MemberId) -> Seat:
        return next(seat for seat in self.seats if seat.id == member)

    def make_next_label(self, member: MemberId) -> str:
        place = [seat.id for seat in self.seats].index(member)
        return f"agent{place + 1}.{len(self.seats[place].answers) + 1}"

    def record_answer(self, member: MemberId, answer: Answer) -> Table:
        """Add an answer and void all votes.

        Raises:
            NotNow: the member has reached MAX_ANSWERS, or only the first answer counts.
        """
        seat = self.find_seat(member)
        if not self.refine and self.labels:
            raise NotNow("only the first answer counts, and it has been given")
        if len(seat.answers) >= MAX_ANSWERS:
            raise NotNow(
                f"you have given {MAX_ANSWERS} answers already; vote for the best answer now"
            )
        voided = replace_fields(
            self, seats=tuple(replace_fields(each, vote=None) for each in self.seats)
        )
        return voided._replace_seat(
            replace_fields(seat, answers=(*seat.answers, answer), vote=None)
        )

    def record_vote(self, member: MemberId, choice: str) -> Table:
        """Set the member's vote; the next answer of any member voids it.

        Raises:
            NotNow: `choice` names no current answer.
        """
        chosen = self._resolve_label(choice)
        if chosen is None:
            there = ", ".join(seat.id for seat in self.seats if seat.current)
            raise NotNow(
                f"no member named {choice[:80]!a} has answered; "
                + (f"vote for one of: {there}" if there else "give an answer first")
            )
        return self._replace_seat(replace_fields(self.find_seat(member), vote=chosen))

    def record_departure(self, member: MemberId, why: str) -> Table:
        """Mark the member as gone; its answer, if any, stays eligible."""
        return self._replace_seat(
            replace_fields(self.find_seat(member), gone=why or "left", vote=None)
        )

    def decide_winner(self) -> Table:
        """Set the winner, if any member has answered."""
        chosen = choose_answer(self.members, self.votes)
        return replace_fields(self, winner=chosen.id if chosen else None)

    @property
    def members(self) -> list[Member]:
        return [
            Member(id=seat.id, answer=seat.current.text if seat.current else None, vote=seat.vote)
            for seat in self.seats
        ]

    @property
    def votes(self) -> Mapping[MemberId, int]:
        return count_votes(self.members)

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the current answers."""
        return tuple(seat.current.label for seat in self.seats if seat.current)

    @property
    def labelled_votes(self) -> dict[str, int]:
        """Votes by the label of the answer."""
        named = ((self.find_seat(id).current, count) for id, count in self.votes.items())
        return {answer.label: count for answer, count in named if answer is not None}

    @property
    def phase(self) -> Phase:
        if self.winner is not None:
            return Phase.PRESENTATION
        waits = any(seat.current is None and not seat.gone for seat in self.seats)
        return Phase.INITIAL_ANSWER if waits else Phase.ENFORCEMENT

    @property
    def percentage(self) -> int:
        """Progress from 0 to 100; 100 once there is a winner."""
        return 100 if self.winner is not None else compute_progress(self.members)

    @property
    def over(self) -> bool:
        """Whether the team is done: every remaining member has voted, or no member is left.

        A team of one and a team without refinement do not vote: the first answer ends them.
        """
        present = [seat for seat in self.seats if not seat.gone]
        if not self.refine or len(self.seats) == 1:
            return bool(self.labels) or not present
        return all(seat.vote is not None for seat in present)

    @property
    def agreed(self) -> bool:
        """Whether the team is done with a decision.

        If all members left, nothing is decided, even if some had answered.
        """
        if not self.refine or len(self.seats) == 1:
            return bool(self.labels)
        return self.over and any(not seat.gone for seat in self.seats)

    def must_act(self, member: MemberId) -> bool:
        """Return whether the team waits for this member."""
        seat = self.find_seat(member)
        if seat.gone or self.over or seat.vote is not None:
            return False
        return self.refine or seat.current is None

    def _resolve_label(self, choice: str) -> MemberId | None:
        # Models refer to an answer by member id, by label, or by the label without its number.
        for number, seat in enumerate(self.seats, start=1):
            if seat.current is None:
                continue
            names = {seat.id, seat.current.label, f"agent{number}"}
            if choice.strip() in names:
                return seat.id
        return None

    def _replace_seat(self, moved: Seat) -> Table:
        seats = tuple(moved if seat.id == moved.id else seat for seat in self.seats)
        return replace_fields(self, seats=seats, winner=None)
