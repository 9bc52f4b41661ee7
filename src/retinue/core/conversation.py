"""Conversation between a member and its model, independent of any vendor's format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A tool that a model may call; `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class Call:
    """A tool call of a model; arguments that are not valid JSON are in `malformed` instead."""

    id: str
    tool: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    malformed: str = ""


@dataclass(frozen=True, kw_only=True)
class Turn:
    role: Role
    text: str = ""
    calls: tuple[Call, ...] = ()  # of an assistant
    call: Call | None = None  # the call that a tool's turn answers
    source: object = field(default=None, compare=False, repr=False)  # the vendor's own form


@dataclass(frozen=True, kw_only=True)
class ReplyUsage:
    """Usage of one reply, as the provider reported it."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0

    def __add__(self, other: ReplyUsage) -> ReplyUsage:
        return ReplyUsage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost=self.cost + other.cost,
        )


@dataclass(frozen=True, kw_only=True)
class Reply:
    text: str = ""
    calls: tuple[Call, ...] = ()
    used: ReplyUsage = field(default_factory=ReplyUsage)
    source: object = field(default=None, compare=False, repr=False)

    @property
    def turn(self) -> Turn:
        return Turn(role="assistant", text=self.text, calls=self.calls, source=self.source)


class ModelFailed(Exception):
    """The model gave no reply, and a retry would not help; the message says why."""


class OutOfBudget(ModelFailed):
    """The budget is used up: no model will reply any more."""
