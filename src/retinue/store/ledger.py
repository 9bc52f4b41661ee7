"""Ledger of model requests, one row per request, and the costs read from it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from retinue.core.budget import Account, Booking, Spending
from retinue.core.events import BilledRequest
from retinue.core.lifecycle import State
from retinue.core.result import TokenUsage
from retinue.core.subagent import Subagent
from retinue.formats.contract_json import budget_from_text
from retinue.store.database import Database
from retinue.store.reads import SlowQueryCache, to_billed_request


class BookingLedger:
    """The ledger; each call is one transaction."""

    def __init__(self, database: Database, now: Callable[[], str]) -> None:
        self._db = database
        self._now = now

    def book(self, booking: Booking, entry: int = 0) -> int:
        """Record a booking, replacing `entry` if given; return its entry id.

        Raises:
            StorageFailed: the disk refused.
        """
        # Not durable: an fsync for each model request would be slow, and only a power loss can
        # lose it.
        spending = booking.spending
        with self._db.transaction(durable=False):
            self._db.run(
                "put_booking",
                entry_id=entry or None,
                task_id=booking.task,
                sub_agent_id=booking.subagent,
                attempt=booking.attempt,
                ts=self._now(),
                provider=booking.provider,
                model=booking.model,
                input_tokens=spending.input_tokens,
                output_tokens=spending.output_tokens,
                cached_tokens=spending.cached_tokens,
                reasoning_tokens=spending.reasoning_tokens,
                cost=spending.cost if booking.priced else None,
                estimated=int(spending.estimated),
                status=booking.status,
                seconds=booking.seconds,
            )
            (row,) = self._db.fetch_rows("last_booking")
        return entry or int(row["entry_id"])

    def delete_entry(self, entry: int) -> None:
        """Delete the entry of a request that came to nothing.

        Raises:
            StorageFailed: the disk refused.
        """
        with self._db.transaction(durable=False):
            self._db.run("strike_booking", entry_id=entry)

    def settle(self) -> None:
        """Mark requests that were open when the last steward died as cut.

        Raises:
            StorageFailed: the disk refused.
        """
        with self._db.transaction(durable=False):
            self._db.run("cut_open_bookings")

    def get_usage(self, subagent: Subagent, attempt: int = 0) -> TokenUsage | None:
        """Return the usage of one attempt, or of all; None if there was no request."""
        row = self._fetch_sums(subagent, attempt)
        if not row["turns"]:
            return None
        return TokenUsage(
            input_tokens=row["input_tokens"],
            output_tokens=row["output_tokens"],
            estimated_cost=round(row["cost"], 10),
            cached_tokens=row["cached_tokens"] or None,
            reasoning_tokens=row["reasoning_tokens"] or None,
            estimated=bool(row["estimated"]),
            unpriced=row["priced"] < row["turns"],
        )

    def sum_spending(self, subagent: Subagent) -> Spending:
        """Return what a subagent itself spent in all attempts."""
        return _to_spending(self._fetch_sums(subagent, 0))

    def load_account(self, subagent: Subagent) -> Account:
        """Return the budget and everything that counts against it, except open requests."""
        below: dict[str, list[sqlite3.Row]] = {}
        # One query for the whole tree, which may be large: this is called for each model request.
        for row in self._db.fetch_rows("delegations", task_id=subagent.task):
            below.setdefault(row["delegated_by"], []).append(row)
        spent, lent = _sum_claims(self.sum_spending(subagent), below.get(subagent.id, ()), below)
        return Account(budget=subagent.contract.budget, spent=spent, lent=lent)

    def _fetch_sums(self, subagent: Subagent, attempt: int) -> sqlite3.Row:
        whose = {"task_id": subagent.task, "sub_agent_id": subagent.id}
        (row,) = self._db.fetch_rows("spent", **whose, attempt=attempt)
        return row


def _sum_claims(
    own: Spending, delegates: Sequence[sqlite3.Row], below: Mapping[str, Sequence[sqlite3.Row]]
) -> tuple[Spending, Spending]:
    """Return what is spent and what is reserved, for a subagent and all below it."""
    spent = own
    lent = Spending()
    for row in delegates:
        theirs, _ = _sum_claims(_to_spending(row), below.get(row["sub_agent_id"], ()), below)
        if row["state"] == State.CLOSED:
            spent += theirs
        else:
            # An open delegate reserves its whole budget, since it may still spend it.
            whole = budget_from_text(row["budget"])
            lent += whole.as_spending() if whole.limited else theirs
    return spent, lent


def _to_spending(row: sqlite3.Row) -> Spending:
    return Spending(
        input_tokens=row["input_tokens"],
        output_tokens=row["output_tokens"],
        cached_tokens=row["cached_tokens"],
        reasoning_tokens=row["reasoning_tokens"],
        cost=row["cost"],
        turns=row["turns"],
        estimated=bool(row["estimated"]),
    )


MAX_CACHED = 64  # sums in the cache
MOST_ROWS = 100  # of one list
MOST_PERIODS = 400
# Name -> length of the time stamps that are alike, longest time that is divided so finely
PERIODS = {"minute": (16, 3 * 3600), "hour": (13, 5 * 86400), "day": (10, float("inf"))}


@dataclass(kw_only=True)
class CostSum:
    """Sum of some model requests."""

    name: str  # of the model, agent, task, subagent or period
    title: str = ""  # of a task
    task_id: str = ""  # of a subagent
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    unpriced: int = 0  # requests to models without a known price

    def add(self, row: sqlite3.Row) -> None:
        self.requests += row["requests"]
        self.input_tokens += row["input_tokens"] or 0
        self.output_tokens += row["output_tokens"] or 0
        self.cost += row["cost"]
        self.unpriced += row["unpriced"]


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Each list has the most expensive entries; `total` counts all."""

    total: CostSum
    models: list[CostSum]
    agents: list[CostSum]
    tasks: list[CostSum]
    subagents: list[CostSum]
    periods: list[CostSum]  # the newest periods with requests, the oldest first
    period: str  # minute, hour or day, in UTC


class CostQueries:
    """Sums over the ledger, and over the claims of subagents that are not in the ledger."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._sums = SlowQueryCache[tuple[str, str], Costs](MAX_CACHED)

    def sum_costs(self, task: str = "", *, period: str = "") -> Costs:
        """Return the costs of a task, or of all tasks.

        Args:
            period: minute, hour or day; empty for the one that fits the time between the requests.
        """
        return self._sums.get((task, period), partial(self._compute, task, period))

    def list_requests(self, task: str, *, after: int, limit: int) -> list[BilledRequest]:
        """Return ended model requests in the order in which they began."""
        rows = self._db.fetch_rows("requests_after", task_id=task, after=after, limit=limit)
        return [to_billed_request(row) for row in rows]

    def _compute(self, task: str, period: str) -> Costs:
        chosen = period or self._choose_period(task)
        length, _ = PERIODS[chosen]
        total = CostSum(name="total")
        models: dict[str, CostSum] = {}
        agents: dict[str, CostSum] = {}
        tasks: dict[str, CostSum] = {}
        subagents: dict[tuple[str, str], CostSum] = {}
        periods: dict[str, CostSum] = {}
        for row in self._db.fetch_rows("costs", task_id=task, length=length):
            model, agent, when = row["model"], row["agent"], row["period"]
            of, who = row["task_id"], row["sub_agent_id"]
            for each in (
                total,
                models.setdefault(model, CostSum(name=model)),
                agents.setdefault(agent, CostSum(name=agent)),
                tasks.setdefault(of, CostSum(name=of, title=row["title"])),
                subagents.setdefault((of, who), CostSum(name=who, task_id=of)),
                periods.setdefault(when, CostSum(name=when)),
            ):
                each.add(row)
        return Costs(
            total=total,
            models=_select_most_expensive(models.values()),
            agents=_select_most_expensive(agents.values()),
            tasks=_select_most_expensive(tasks.values()),
            subagents=_select_most_expensive(subagents.values()),
            periods=[periods[name] for name in sorted(periods)][-MOST_PERIODS:],
            period=chosen,
        )

    def _choose_period(self, task: str) -> str:
        (row,) = self._db.fetch_rows("extent_of_costs", task_id=task)
        seconds = row["seconds"] or 0.0
        return next(name for name, (_, longest) in PERIODS.items() if seconds <= longest)


def _select_most_expensive(sums: Iterable[CostSum]) -> list[CostSum]:
    ranked = sorted(sums, key=lambda each: (-each.cost, -each.input_tokens, each.name))
    return ranked[:MOST_ROWS]
