"""Costs of a root or a task: by model, agent, task, subagent and over time."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable
from dataclasses import dataclass

from retinue.core.data_structures import BoundedDict
from retinue.core.events import Paid
from retinue.store.database import Database
from retinue.store.reads import SHARE_OF_TIME, SHORT_SECONDS, to_paid

KEPT = 64  # sums in the cache
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
        self._sums = BoundedDict[tuple[str, str], tuple[Costs, float]](KEPT)

    def sum_costs(self, task: str = "", *, period: str = "") -> Costs:
        """Return the costs of a task, or of all tasks.

        The time this takes grows with the ledger. When it is slow, sums are computed only so often
        that it takes a small share of the time.

        Args:
            period: minute, hour or day; empty for the one that fits the time between the requests.
        """
        known = self._sums.get((task, period))
        if known is not None and time.monotonic() < known[1]:
            return known[0]
        began = time.monotonic()
        costs = self._compute(task, period)
        took = time.monotonic() - began
        until = began + took / SHARE_OF_TIME if took > SHORT_SECONDS else began
        self._sums[task, period] = (costs, until)
        return costs

    def list_requests(self, task: str, *, after: int, limit: int) -> list[Paid]:
        """Return ended model requests in the order in which they began."""
        rows = self._db.fetch_rows("requests_after", task_id=task, after=after, limit=limit)
        return [to_paid(row) for row in rows]

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
            models=_select_dearest(models.values()),
            agents=_select_dearest(agents.values()),
            tasks=_select_dearest(tasks.values()),
            subagents=_select_dearest(subagents.values()),
            periods=[periods[name] for name in sorted(periods)][-MOST_PERIODS:],
            period=chosen,
        )

    def _choose_period(self, task: str) -> str:
        (row,) = self._db.fetch_rows("extent_of_costs", task_id=task)
        seconds = row["seconds"] or 0.0
        return next(name for name, (_, longest) in PERIODS.items() if seconds <= longest)


def _select_dearest(sums: Iterable[CostSum]) -> list[CostSum]:
    ranked = sorted(sums, key=lambda each: (-each.cost, -each.input_tokens, each.name))
    return ranked[:MOST_ROWS]
