"""Ledger sums by attempt, by subagent and over the tree of delegates."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retinue.core.budget import Booking, Budget, Spending
from retinue.core.contract import Permissions
from retinue.core.events import Event
from retinue.core.ids import SubagentId
from retinue.core.subagent import Draft, Subagent
from retinue.ports import Admission
from retinue.store.database import Database
from retinue.store.ledger import BookingLedger, CostQueries
from retinue.store.reads import PageQueries, Records
from retinue.store.sqlite_store import SqliteStore
from support import values
from support.values import TASK

CONTRACT = replace(
    values.CONTRACT, permissions=Permissions(can_spawn_children=True, max_delegation_depth=2)
)


def booking(name: str, tokens: int, *, attempt: int = 1, cost: float | None = 0.5) -> Booking:
    return Booking(
        task=TASK.id,
        subagent=SubagentId(name),
        attempt=attempt,
        provider="openai",
        model="m",
        spending=Spending(input_tokens=tokens, output_tokens=1, cost=cost or 0.0, turns=1),
        priced=cost is not None,
        status="completed",
    )


class Desk:
    def __init__(self, database: Database) -> None:
        self.records = Records(database)
        self.store = SqliteStore(database, self.records, lambda: values.NOW)
        self.books = BookingLedger(database, lambda: values.NOW)
        self.store.create_task(TASK, Event(type="task.created", summary="made"))

    def admit(self, name: str, budget: Budget, parent: str = "") -> Subagent:
        contract = replace(CONTRACT, budget=budget, delegated_by=parent)
        draft = Draft(id=SubagentId(name), contract=contract)
        (made,), _ = self.store.admit(TASK.id, Admission(drafts=(draft,), by="user", limit=9))
        return made

    def spend(self, name: str, tokens: int, *, attempt: int = 1, cost: float | None = 0.5) -> None:
        self.books.book(booking(name, tokens, attempt=attempt, cost=cost))

    def close(self, name: str) -> None:
        whole = self.records.get_subagent(TASK.id, name).id
        types = ("started", "failed", "closed")
        payloads = ({}, {}, {"final_status": "failed", "close_reason": "x"})
        self.store.record(
            TASK.id,
            [
                Event(type=f"agent.subagent_{kind}", subagent=whole, summary="x", payload=payload)
                for kind, payload in zip(types, payloads, strict=True)
            ],
        )


class CountingDatabase(Database):
    """Database that counts read queries."""

    queries = 0

    def fetch_rows(self, query: str, **values: Any) -> list[sqlite3.Row]:
        self.queries += 1
        return super().fetch_rows(query, **values)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    database = Database(tmp_path / "retinue.db")
    yield Desk(database)
    database.close()


def test_usage_without_bookings_is_unknown_not_zero(desk: Desk) -> None:
    assert desk.books.get_usage(desk.admit("a", Budget()), 1) is None


def test_usage_is_summed_by_attempt_and_in_total(desk: Desk) -> None:
    made = desk.admit("a", Budget())
    desk.spend("a", 10)
    desk.spend("a", 20, attempt=2)
    first, both = desk.books.get_usage(made, 1), desk.books.get_usage(made, 0)
    assert first is not None and both is not None
    assert (first.input_tokens, first.output_tokens, first.estimated_cost) == (10, 1, 0.5)
    assert (both.input_tokens, both.estimated_cost) == (30, 1.0)
    assert desk.books.sum_spending(made).turns == 2


def test_an_unknown_price_is_left_out_and_marked(desk: Desk) -> None:
    made = desk.admit("a", Budget())
    desk.spend("a", 10)
    usage = desk.books.get_usage(made, 0)
    assert usage is not None and (usage.estimated_cost, usage.unpriced) == (0.5, False)
    desk.spend("a", 10, cost=None)
    usage = desk.books.get_usage(made, 0)
    assert usage is not None and (usage.estimated_cost, usage.unpriced) == (0.5, True)


def test_requests_are_listed_in_the_order_in_which_they_ended(tmp_path: Path) -> None:
    """A long request is entered before a short one that ends earlier."""
    database = Database(tmp_path / "retinue.db")
    moments = iter(f"2026-01-01T00:00:0{second}.000Z" for second in range(9))
    desk = Desk(database)
    desk.books = BookingLedger(database, lambda: next(moments))
    desk.admit("a", Budget())
    long = booking("a", 10)
    entry = desk.books.book(replace(long, status="open"), 0)
    desk.spend("a", 20)
    desk.books.book(long, entry)
    paid = PageQueries(database, desk.records).list_model_requests(TASK.id, SubagentId("a"))
    database.close()
    assert [each.spending.input_tokens for each in paid] == [20, 10]
    assert [each.ts for each in paid] == sorted(each.ts for each in paid)


def test_a_ledger_of_the_former_version_is_kept_and_continued(tmp_path: Path) -> None:
    """Schema 3 measured no time."""
    path = tmp_path / "retinue.db"
    with closing(Database(path)) as database:
        desk = Desk(database)
        desk.admit("a", Budget())
        desk.spend("a", 10)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE ledger DROP COLUMN seconds")
        connection.execute("PRAGMA user_version = 3")
    with closing(Database(path, read_only=True)) as untouched:
        (old,) = CostQueries(untouched).list_requests(TASK.id, after=0, limit=9)
        assert (old.spending.input_tokens, old.seconds) == (10, None)
        assert CostQueries(untouched).sum_costs().total.cost == 0.5
    with closing(Database(path)) as database:
        books = BookingLedger(database, lambda: values.NOW)
        books.book(replace(booking("a", 20), seconds=1.5))
        both = CostQueries(database).list_requests(TASK.id, after=0, limit=9)
        assert [each.seconds for each in both] == [None, 1.5]


def test_costs_are_summed_by_model_subagent_and_time(tmp_path: Path) -> None:
    with closing(Database(tmp_path / "retinue.db")) as database:
        desk = Desk(database)
        desk.admit("a", Budget())
        desk.admit("b", Budget())
        for day, name, tokens in ((1, "a", 10), (1, "b", 20), (9, "b", 30)):
            books = BookingLedger(database, lambda day=day: f"2026-01-0{day}T10:00:00.000Z")
            books.book(replace(booking(name, tokens), model=f"m-{name}"))
        books.book(replace(booking("a", 5, cost=None), model="m-b"))
        books.book(replace(booking("a", 999), status="open"))
        costs = CostQueries(database).sum_costs()
        assert (costs.total.requests, costs.total.input_tokens) == (4, 65)
        assert (costs.total.cost, costs.total.unpriced) == (1.5, 1)
        shown = [(each.name, each.cost, each.input_tokens) for each in costs.models]
        assert shown == [("openai/m-b", 1.0, 55), ("openai/m-a", 0.5, 10)]
        assert [(each.name, each.task_id) for each in costs.subagents] == [
            ("b", TASK.id),
            ("a", TASK.id),
        ]
        assert [(each.name, each.title) for each in costs.tasks] == [(TASK.id, TASK.title)]
        assert costs.period == "day"
        assert [(each.name, each.requests) for each in costs.periods] == [
            ("2026-01-01", 2),
            ("2026-01-09", 2),
        ]
        hours = CostQueries(database).sum_costs(TASK.id, period="hour")
        assert [each.name for each in hours.periods] == ["2026-01-01T10", "2026-01-09T10"]
        assert CostQueries(database).sum_costs("other").total.requests == 0


@pytest.mark.requirement("R237", "R248")
def test_totals_of_a_task_include_running_subagents(desk: Desk) -> None:
    desk.admit("a", Budget())
    desk.spend("a", 10)
    totals = desk.records.sum_totals(TASK.id)
    assert (totals.input_tokens, totals.output_tokens) == (10, 1)
    assert totals.estimated_cost == 0.5


def test_a_delegates_budget_is_reserved_and_the_unspent_rest_returned(desk: Desk) -> None:
    parent = desk.admit("parent", Budget(tokens=1000))
    desk.admit("child", Budget(tokens=400), parent="parent")
    desk.admit("grandchild", Budget(tokens=100), parent="child")
    desk.spend("parent", 99)
    assert desk.books.load_account(parent).left.tokens == 500
    desk.spend("grandchild", 49)
    assert desk.books.load_account(parent).left.tokens == 500
    desk.close("grandchild")
    desk.close("child")
    assert desk.books.load_account(parent).left.tokens == 850


def test_loading_an_account_takes_a_constant_number_of_queries(tmp_path: Path) -> None:
    def queries(children: int) -> int:
        database = CountingDatabase(tmp_path / f"{children}.db")
        desk = Desk(database)
        parent = desk.admit("parent", Budget(tokens=1000))
        for number in range(children):
            desk.admit(f"child-{number}", Budget(tokens=1), parent="parent")
            desk.close(f"child-{number}")
            desk.admit(f"below-{number}", Budget(tokens=1), parent=f"child-{number}")
            desk.close(f"below-{number}")
            desk.spend(f"below-{number}", 0)
        before = database.queries
        assert desk.books.load_account(parent).left.tokens == 1000 - children
        after = database.queries
        database.close()
        return after - before

    assert queries(40) == queries(1)
