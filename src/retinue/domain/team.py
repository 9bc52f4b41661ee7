"""A subagent's team: who answered, who voted for whom, and what follows from it.

The team inside the child and recovery outside it both call these functions, so
they cannot disagree about which answer won.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from retinue.domain.ids import MemberId

SNAPSHOTS, TEMPORARY = "snapshots", "temp"  # in its workspace, for its own use
WINNER = "winner"  # among the snapshots, once there is one: leads to its folder
OURS = ".retinue"  # in a workspace: never part of what is merged or copied out of it


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
    """The member whose answer has the most votes; ties, or no votes, fall to registration order.

    Members stand in registration order; one without an answer never wins.
    """
    answered = [member for member in members if member.answer is not None]
    return max(answered, key=lambda member: votes.get(member.id, 0), default=None)


def tally(members: Sequence[Member]) -> Mapping[MemberId, int]:
    """How many votes each current answer has; votes for anything else count for nobody."""
    answered = _answered(members)
    votes = (member.vote for member in members if member.vote is not None)
    return Counter(vote for vote in votes if vote in answered)


def progress(members: Sequence[Member]) -> int:
    """How far the team is, 0 to 100: half for its answers, half for its votes.

    Rounded down, so that 50 and 100 are reached only when every member has
    answered, and when every member has also voted.
    """
    if not members:
        return 0
    return 50 * (len(_answered(members)) + sum(tally(members).values())) // len(members)


def _answered(members: Sequence[Member]) -> set[MemberId]:
    return {member.id for member in members if member.answer is not None}
