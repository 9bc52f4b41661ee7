"""What a stopped subagent had already earned.

Everything here was claimed by a child and has been validated at the door: what
is left is to say which of its answers the parent receives, and whether that
answer was final.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from retinue.domain.ids import MemberId
from retinue.domain.team import Member, Phase, choose_answer


@dataclass(frozen=True, kw_only=True)
class TokenUsage:
    """What was spent: counted as it passed, else as far as the child said so."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    estimated_cost: int | float | None = None
    cached_tokens: int | None = None  # part of the input
    reasoning_tokens: int | None = None  # part of the output
    estimated: bool = False  # some of the tokens were guessed, because a provider did not say
    unpriced: bool = False  # the cost leaves out what nobody knows the price of


@dataclass(frozen=True, kw_only=True)
class Testimony:
    """What a child last wrote of its team, with everything impossible left out."""

    phase: Phase | None = None
    winner: MemberId | None = None
    members: tuple[MemberId, ...] = ()  # in registration order
    votes: Mapping[MemberId, int] = field(default_factory=dict)
    usage: TokenUsage = field(default_factory=TokenUsage)
    completion_percentage: int | float | None = None
    problem: str = ""  # what could not be read or believed


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A tool that a member was denied, by its team's own word."""

    member: str
    tool: str
    reason: str
    delegation: bool = False  # it would have delegated by it


class Declared(StrEnum):
    SUCCESS = "success"
    BLOCKED = "blocked"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class FinalDeclaration:
    """What a foreign command says of its own end."""

    status: Declared | None = None
    summary: str = ""
    questions: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Salvage:
    """The answer that could be saved; complete when its author meant it as final."""

    answer: str | None = None
    complete: bool = False


def answer_text(text: str | None) -> str | None:
    """The text without its trailing line ends; None when nothing but blanks is left."""
    return text.rstrip("\r\n") if text and text.strip() else None


def recover(
    testimony: Testimony | None, answers: Mapping[MemberId, str], final_answer: str | None
) -> Salvage:
    """The best answer there is: the final one, the winner's, the most voted, the first.

    Only the first two are complete: a team that was still voting had decided
    nothing, whatever winner it names. Answers of unregistered members count for
    nothing.
    """
    final = answer_text(final_answer)
    if final is not None:
        return Salvage(answer=final, complete=True)
    if testimony is None:
        return Salvage()
    members = [Member(id=id, answer=answer_text(answers.get(id))) for id in testimony.members]
    if testimony.phase is Phase.PRESENTATION:
        for member in members:
            if member.id == testimony.winner and member.answer is not None:
                return Salvage(answer=member.answer, complete=True)
    chosen = choose_answer(members, testimony.votes)
    return Salvage(answer=chosen.answer if chosen else None)
