"""What a subagent may spend on models, and what it has spent.

A subagent's own subagents spend out of its budget: the most that each may spend
is set aside when it is created, and what it left over is free again once it is
closed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeVar

from retinue.domain.ids import SubagentId, TaskId

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, kw_only=True)
class Spending:
    """Tokens, money and requests that went to models."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0  # part of the input
    reasoning_tokens: int = 0  # part of the output
    cost: float = 0.0
    turns: int = 0
    estimated: bool = False  # some of it was guessed, because a provider did not say

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Spending) -> Spending:
        return Spending(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            cost=self.cost + other.cost,
            turns=self.turns + other.turns,
            estimated=self.estimated or other.estimated,
        )

    def without(self, estimate: Spending) -> Spending:
        """What is still set aside for requests under way, once that one of them is over."""
        return Spending(
            input_tokens=self.input_tokens - estimate.input_tokens,
            output_tokens=self.output_tokens - estimate.output_tokens,
            cost=max(0.0, self.cost - estimate.cost),
            turns=self.turns - estimate.turns,
        )


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The most that may be spent; None is no limit."""

    tokens: int | None = None
    usd: float | None = None
    turns: int | None = None

    @property
    def limited(self) -> bool:
        return (self.tokens, self.usd, self.turns) != (None, None, None)

    def minus(self, spent: Spending) -> Budget:
        """What is left of it, never less than nothing."""
        return Budget(
            tokens=None if self.tokens is None else max(0, self.tokens - spent.tokens),
            usd=None if self.usd is None else max(0.0, self.usd - spent.cost),
            turns=None if self.turns is None else max(0, self.turns - spent.turns),
        )

    def narrowed(self, other: Budget) -> Budget:
        """The smaller of both, in each kind."""
        return Budget(
            tokens=_smaller(self.tokens, other.tokens),
            usd=_smaller(self.usd, other.usd),
            turns=_smaller(self.turns, other.turns),
        )

    def shared(self, shares: int) -> Budget:
        """One of so many equal parts."""
        return Budget(
            tokens=None if self.tokens is None else self.tokens // shares,
            usd=None if self.usd is None else self.usd / shares,
            turns=None if self.turns is None else self.turns // shares,
        )

    def reached_by(self, spent: Spending) -> str:
        """Which limit is used up, in words; empty while there is something left of each."""
        if self.turns is not None and spent.turns >= self.turns:
            return f"{spent.turns} of {self.turns} turns"
        if self.tokens is not None and spent.tokens >= self.tokens:
            return f"{spent.tokens} of {self.tokens} tokens"
        if self.usd is not None and spent.cost >= self.usd:
            return f"{spent.cost:.4f} of {self.usd:g} USD"
        return ""

    def as_spending(self) -> Spending:
        """The whole of it, spent; kinds without a limit count as nothing."""
        return Spending(input_tokens=self.tokens or 0, cost=self.usd or 0.0, turns=self.turns or 0)


@dataclass(frozen=True, kw_only=True)
class Booking:
    """One request that was let through to a model, and what it took."""

    task: TaskId
    subagent: SubagentId
    attempt: int
    provider: str
    model: str
    spending: Spending
    priced: bool  # whether the cost is known
    status: str  # completed, cut, replayed; open while it is under way


class Verdict(StrEnum):
    GRANTED = "granted"
    WAIT = "wait"  # what is set aside for others may come back
    REFUSED = "refused"


@dataclass(frozen=True, kw_only=True)
class Account:
    """One subagent's budget, and everything that counts against it."""

    budget: Budget
    spent: Spending = field(default_factory=Spending)  # by itself, and by its closed subagents
    lent: Spending = field(default_factory=Spending)  # set aside for its open subagents
    in_flight: Spending = field(default_factory=Spending)  # of requests that are under way

    def decide(self, estimate: Spending) -> Verdict:
        """Whether a request of about this size may go out.

        Alone, it may as long as anything is left: a budget is overrun by one
        request at most. Beside others it must fit into what they leave.
        """
        if self.budget.reached_by(self.spent):
            return Verdict.REFUSED
        claimed = self.spent + self.lent + self.in_flight
        if self.budget.reached_by(claimed):
            return Verdict.WAIT
        alone = self.in_flight.turns == 0
        return Verdict.GRANTED if alone or self._fits(claimed + estimate) else Verdict.WAIT

    def reserve(self, estimate: Spending) -> Account:
        return replace(self, in_flight=self.in_flight + estimate)

    @property
    def left(self) -> Budget:
        """What its next subagent could be given at most."""
        return self.budget.minus(self.spent + self.lent + self.in_flight)

    def _fits(self, whole: Spending) -> bool:
        limits = self.budget
        return (
            (limits.tokens is None or whole.tokens <= limits.tokens)
            and (limits.usd is None or whole.cost <= limits.usd)
            and (limits.turns is None or whole.turns <= limits.turns)
        )


def _smaller(one: Number | None, other: Number | None) -> Number | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
