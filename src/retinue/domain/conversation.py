"""What is said between a member and its model, in no vendor's words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, kw_only=True)
class Tool:
    """What a model may call: its name, what it is for, and a JSON schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class Call:
    """What a model asked for. Arguments that could not be read are in `malformed` instead."""

    id: str
    tool: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    malformed: str = ""


@dataclass(frozen=True, kw_only=True)
class Turn:
    role: Role
    text: str = ""
    calls: tuple[Call, ...] = ()  # of an assistant
    call: Call | None = None  # what a tool's turn answers
    source: object = field(default=None, compare=False, repr=False)  # a backend's own note of it


@dataclass(frozen=True, kw_only=True)
class Used:
    """What one reply took, as the provider said."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0

    def __add__(self, other: Used) -> Used:
        return Used(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost=self.cost + other.cost,
        )


@dataclass(frozen=True, kw_only=True)
class Reply:
    text: str = ""
    calls: tuple[Call, ...] = ()
    used: Used = field(default_factory=Used)
    source: object = field(default=None, compare=False, repr=False)

    @property
    def turn(self) -> Turn:
        return Turn(role="assistant", text=self.text, calls=self.calls, source=self.source)


class ModelFailed(Exception):
    """A model gave no reply; the message says why, and more tries would not help."""


class OutOfBudget(ModelFailed):
    """No model will reply any more: what may be spent is spent."""
