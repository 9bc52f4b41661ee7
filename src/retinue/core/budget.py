"""Budgets of subagents and their spending on models.

A subagent's own subagents spend from its budget. The maximum of each is reserved when
it is created; the unused rest is released when it is closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeVar

from retinue.core.ids import SubagentId, TaskId
from retinue.core.result import TokenUsage

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, kw_only=True)
class Spending:
    """Tokens, cost and number of model requests."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0  # part of the input
    reasoning_tokens: int = 0  # part of the output
    cost: float = 0.0
    turns: int = 0
    estimated: bool = False  # a provider did not report some of the tokens

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

    def release_request(self, estimate: Spending) -> Spending:
        """Return the reservations without those of a request that has ended."""
        return Spending(
            input_tokens=self.input_tokens - estimate.input_tokens,
            output_tokens=self.output_tokens - estimate.output_tokens,
            # Sums of floats are inexact; the rest must not become slightly negative.
            cost=max(0.0, self.cost - estimate.cost),
            turns=self.turns - estimate.turns,
        )


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Spending limits; None means no limit."""

    tokens: int | None = None
    usd: float | None = None
    turns: int | None = None

    @property
    def limited(self) -> bool:
        return (self.tokens, self.usd, self.turns) != (None, None, None)

    def subtract(self, spent: Spending) -> Budget:
        """Return what is left, at least 0."""
        return Budget(
            tokens=None if self.tokens is None else max(0, self.tokens - spent.tokens),
            usd=None if self.usd is None else max(0.0, self.usd - spent.cost),
            turns=None if self.turns is None else max(0, self.turns - spent.turns),
        )

    def narrow(self, other: Budget) -> Budget:
        """Return the smaller of both limits, for each kind."""
        return Budget(
            tokens=_take_smaller(self.tokens, other.tokens),
            usd=_take_smaller(self.usd, other.usd),
            turns=_take_smaller(self.turns, other.turns),
        )

    def split(self, shares: int) -> Budget:
        """Return one of `shares` equal parts."""
        return Budget(
            tokens=None if self.tokens is None else self.tokens // shares,
            usd=None if self.usd is None else self.usd / shares,
            turns=None if self.turns is None else self.turns // shares,
        )

    def find_reached_limit(self, spent: Spending) -> str:
        """Describe the first limit that is used up; empty if none is."""
        if self.turns is not None and spent.turns >= self.turns:
            return f"{spent.turns} of {self.turns} turns"
        if self.tokens is not None and spent.tokens >= self.tokens:
            return f"{spent.tokens} of {self.tokens} tokens"
        if self.usd is not None and spent.cost >= self.usd:
            return f"{spent.cost:.4f} of {self.usd:g} USD"
        return ""

    def as_spending(self) -> Spending:
        """Return the whole budget as spending; kinds without a limit count as 0."""
        return Spending(input_tokens=self.tokens or 0, cost=self.usd or 0.0, turns=self.turns or 0)


@dataclass(frozen=True, kw_only=True)
class Booking:
    """One admitted model request and its spending."""

    task: TaskId
    subagent: SubagentId
    attempt: int
    provider: str
    model: str
    spending: Spending
    priced: bool  # whether the cost is known
    status: str  # completed, cut or replayed; open while in flight
    seconds: float | None = None  # since the provider was asked; None if it was not


class Verdict(StrEnum):
    GRANTED = "granted"
    WAIT = "wait"  # reservations of others may be released
    REFUSED = "refused"


@dataclass(frozen=True, kw_only=True)
class Account:
    """A subagent's budget and everything that counts against it."""

    budget: Budget
    spent: Spending = field(default_factory=Spending)  # by itself and its closed subagents
    lent: Spending = field(default_factory=Spending)  # reserved for its open subagents
    in_flight: Spending = field(default_factory=Spending)  # reserved for requests in flight

    def decide(self, estimate: Spending) -> Verdict:
        """Decide whether a request of this estimated size may be sent.

        A single request is granted while anything is left, so one request at most overruns
        the budget. A request beside others must fit into what they leave.
        """
        # Spending is final: nothing can release it.
        if self.budget.find_reached_limit(self.spent):
            return Verdict.REFUSED
        # Reservations may be released, so the request waits instead of being refused.
        claimed = self.spent + self.lent + self.in_flight
        if self.budget.find_reached_limit(claimed):
            return Verdict.WAIT
        alone = self.in_flight.turns == 0
        return Verdict.GRANTED if alone or self._has_room_for(claimed + estimate) else Verdict.WAIT

    def reserve(self, estimate: Spending) -> Account:
        return replace(self, in_flight=self.in_flight + estimate)

    @property
    def left(self) -> Budget:
        """The largest budget that its next subagent can get."""
        return self.budget.subtract(self.spent + self.lent + self.in_flight)

    def _has_room_for(self, whole: Spending) -> bool:
        limits = self.budget
        return (
            (limits.tokens is None or whole.tokens <= limits.tokens)
            and (limits.usd is None or whole.cost <= limits.usd)
            and (limits.turns is None or whole.turns <= limits.turns)
        )


def _take_smaller(one: Number | None, other: Number | None) -> Number | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


@dataclass(frozen=True, kw_only=True)
class ModelAccess:
    """Environment through which a child reaches the gateway."""

    environment: Mapping[str, str] = field(default_factory=dict)  # empty: no models
    listens: bool = False  # the child's init opens the listening socket and passes it on


@dataclass(frozen=True, kw_only=True)
class AttemptSpending:
    """Spending of one attempt."""

    usage: TokenUsage | None = None  # None: no request was made
    over_budget: str = ""  # the limit it reached
