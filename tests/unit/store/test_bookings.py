"""What passed to models is added up by attempt, by subagent and over the tree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from retinue.domain.budget import Booking, Budget, Spending
from retinue.domain.contract import Permissions
from retinue.domain.event import Event
from retinue.domain.ids import SubagentId
from retinue.domain.subagent import Draft, Subagent
from retinue.ports import Admission
from retinue.store.bookings import Bookings
from retinue.store.database import Database
from retinue.store.records import SqliteRecords
from retinue.store.sqlite import SqliteStore
from support import values
from support.values import TASK

CONTRACT = replace(
    values.CONTRACT, permissions=Permissions(can_spawn_children=True, max_delegation_depth=2)
)


class Desk:
    def __init__(self, database: Database) -> None:
        self.records = SqliteRecords(database)
        self.store = SqliteStore(database, self.records, lambda: values.NOW)
        self.books = Bookings(database, lambda: values.NOW)
        self.store.create_task(TASK, Event(type="task.created", summary="made"))

    def admit(self, name: str, budget: Budget, parent: str = "") -> Subagent:
        contract = replace(CONTRACT, budget=budget, delegated_by=parent)
        draft = Draft(id=SubagentId(name), contract=contract)
        (made,), _ = self.store.admit(TASK.id, Admission(drafts=(draft,), by="user", limit=9))
        return made

    def spend(self, name: str, tokens: int, *, attempt: int = 1, cost: float | None = 0.5) -> None:
        spent = Spending(input_tokens=tokens, output_tokens=1, cost=cost or 0.0, turns=1)
        self.books.book(
            Booking(
                task=TASK.id,
                subagent=SubagentId(name),
                attempt=attempt,
                provider="openai",
                model="m",
                spending=spent,
                priced=cost is not None,
                status="completed",
            )
        )

    def close(self, name: str) -> None:
        whole = self.records.subagent(TASK.id, name).id
        types = ("started", "failed", "closed")
        payloads = ({}, {}, {"final_status": "failed", "close_reason": "x"})
        self.store.record(
            TASK.id,
            [
                Event(type=f"agent.subagent_{kind}", subagent=whole, summary="x", payload=payload)
                for kind, payload in zip(types, payloads, strict=True)
            ],
        )


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    database = Database(tmp_path / "retinue.db")
    yield Desk(database)
    database.close()


def test_nothing_booked_is_not_known_rather_than_nothing(desk: Desk) -> None:
    assert desk.books.usage(desk.admit("a", Budget()), 1) is None


def test_attempts_are_told_apart_and_added_up(desk: Desk) -> None:
    made = desk.admit("a", Budget())
    desk.spend("a", 10)
    desk.spend("a", 20, attempt=2)
    first, both = desk.books.usage(made, 1), desk.books.usage(made, 0)
    assert first is not None and both is not None
    assert (first.input_tokens, first.output_tokens, first.estimated_cost) == (10, 1, 0.5)
    assert (both.input_tokens, both.estimated_cost) == (30, 1.0)
    assert desk.books.spent(made).turns == 2


def test_a_price_that_nobody_knows_is_left_out_and_said_to_be(desk: Desk) -> None:
    made = desk.admit("a", Budget())
    desk.spend("a", 10)
    usage = desk.books.usage(made, 0)
    assert usage is not None and (usage.estimated_cost, usage.unpriced) == (0.5, False)
    desk.spend("a", 10, cost=None)
    usage = desk.books.usage(made, 0)
    assert usage is not None and (usage.estimated_cost, usage.unpriced) == (0.5, True)


@pytest.mark.requirement("R237", "R248")
def test_totals_of_a_task_count_what_passed_also_of_those_still_at_work(desk: Desk) -> None:
    desk.admit("a", Budget())
    desk.spend("a", 10)
    totals = desk.records.totals(TASK.id)
    assert (totals.input_tokens, totals.output_tokens) == (10, 1)
    assert totals.estimated_cost == 0.5


def test_a_childs_most_is_set_aside_at_its_creation_and_the_rest_comes_back(desk: Desk) -> None:
    parent = desk.admit("parent", Budget(tokens=1000))
    desk.admit("child", Budget(tokens=400), parent="parent")
    desk.admit("grandchild", Budget(tokens=100), parent="child")
    desk.spend("parent", 99)
    assert desk.books.account(parent).left.tokens == 500
    desk.spend("grandchild", 49)
    assert desk.books.account(parent).left.tokens == 500
    desk.close("grandchild")
    desk.close("child")
    assert desk.books.account(parent).left.tokens == 850
