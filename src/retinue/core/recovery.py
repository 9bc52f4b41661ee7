"""Recovery of a stopped subagent's answer from its testimony and answers.

The child's claims were validated when they were read. This module decides which
answer the parent receives and whether that answer is final.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from retinue.core.coordination import Member, Phase, choose_answer
from retinue.core.ids import MemberId


@dataclass(frozen=True, kw_only=True)
class TokenUsage:
    """Token usage, counted by the gateway or else claimed by the child."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    estimated_cost: int | float | None = None
    cached_tokens: int | None = None  # part of the input
    reasoning_tokens: int | None = None  # part of the output
    estimated: bool = False  # a provider did not report some of the tokens
    unpriced: bool = False  # the price of a model is unknown; the cost excludes it


@dataclass(frozen=True, kw_only=True)
class Testimony:
    """What a child last wrote about its team, without invalid values."""

    phase: Phase | None = None
    winner: MemberId | None = None
    members: tuple[MemberId, ...] = ()  # in registration order
    votes: Mapping[MemberId, int] = field(default_factory=dict)
    usage: TokenUsage = field(default_factory=TokenUsage)
    completion_percentage: int | float | None = None
    sessions: Mapping[MemberId, AgentSession] = field(default_factory=dict)  # of coding agents
    problem: str = ""  # which values were invalid


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A tool that was denied to a member, as the team reported it."""

    member: str
    tool: str
    reason: str
    delegation: bool = False  # the tool would have delegated


@dataclass(frozen=True, kw_only=True)
class AgentNotice:
    """Something that happened to a coding agent, as the team reported it."""

    kind: str  # session, steered, permission, warning
    member: str
    facts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class AgentSession:
    """The session of a coding agent, as the team reported it."""

    session: str
    resumed: str  # fresh, native or transcript
    doing: str = ""  # the tool that it uses now; empty between turns


class Declared(StrEnum):
    SUCCESS = "success"
    BLOCKED = "blocked"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class FinalDeclaration:
    """A command's own declaration of its end."""

    status: Declared | None = None
    summary: str = ""
    questions: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Salvage:
    """A recovered answer; `complete` if its author meant it as final."""

    answer: str | None = None
    complete: bool = False


def answer_text(text: str | None) -> str | None:
    """Return the text without trailing line ends; None if it is blank."""
    return text.rstrip("\r\n") if text and text.strip() else None


def recover(
    testimony: Testimony | None, answers: Mapping[MemberId, str], final_answer: str | None
) -> Salvage:
    """Return the best available answer: the final one, the winner's, the most voted, the first.

    Only the first two are complete: a team that was still voting has decided nothing, even if
    its testimony names a winner. Answers of unregistered members are ignored.
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
