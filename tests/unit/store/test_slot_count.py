"""Slot counter: kept in memory and always equal to a count in the database."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retinue.core import events
from retinue.core.contract import ROOT
from retinue.core.errors import BadInput, LimitExceeded
from retinue.core.events import Event
from retinue.core.ids import SubagentId
from retinue.core.subagent import Draft
from retinue.ports import Admission, EventFacts
from retinue.store.database import Database
from retinue.store.reads import Records
from retinue.store.sqlite_store import Slots, SqliteStore
from support.values import CONTRACT, NOW, TASK

UP = (events.SUBAGENT_STARTED, events.STARTED)
FAILS = (events.FAILED, events.SUBAGENT_FAILED)
SITE, LIMIT = TASK.id, 5


class Counted(Database):
    """Database that records its queries."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.asked: list[str] = []

    def fetch_rows(self, query: str, **values: Any) -> list[Any]:
        self.asked.append(query)
        return super().fetch_rows(query, **values)


class Kept:
    def __init__(self, path: Path) -> None:
        self.database = Counted(path)
        records = Records(self.database)
        self.store = SqliteStore(self.database, records, lambda: NOW)
        self.store.create_task(TASK, Event(type=events.TASK_CREATED, summary="created"))

    def admit(self, *names: str, agent: str = CONTRACT.agent) -> None:
        contract = replace(CONTRACT, agent=agent)
        drafts = tuple(Draft(id=SubagentId(name), contract=contract) for name in names)
        self.store.admit(SITE, Admission(drafts=drafts, by="user", limit=LIMIT))

    def record(self, name: str, *kinds: str) -> None:
        self.store.record_all([(SITE, self.events(name, kinds), EventFacts())])

    def events(self, name: str, kinds: tuple[str, ...]) -> list[Event]:
        payload = {"final_status": "failed", "close_reason": "timeout"}
        return [
            Event(type=kind, subagent=SubagentId(name), attempt=1, summary="x", payload=payload)
            for kind in kinds
        ]

    def require(self, held: int) -> None:
        """Require this number of slots, both in the database and in the store's counter."""
        assert Slots(self.database).count_held(SITE) == held
        with pytest.raises(LimitExceeded, match=rf"active={held}\b"):
            self.admit(*(f"more-{number}" for number in range(LIMIT - held + 1)))


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    kept = Kept(tmp_path / "retinue.db")
    yield kept
    kept.database.close()


def test_a_subagent_holds_a_slot_from_admission_to_end_except_while_blocked(
    kept: Kept,
) -> None:
    kept.admit("one", "two", "three")
    kept.require(held=3)
    kept.record("one", *UP)
    kept.record("two", *UP, *FAILS)
    kept.require(held=2)
    kept.record("one", events.BLOCKED)
    kept.require(held=1)
    kept.record("one", events.GATE_ANSWERED)
    kept.require(held=2)
    kept.record("one", *FAILS, events.SUBAGENT_CLOSED)
    kept.record("two", events.SUBAGENT_CLOSED)
    kept.require(held=1)


def test_subagents_that_end_in_one_commit_free_their_slots(kept: Kept) -> None:
    kept.admit("one", "two", "three")
    ends = [kept.events(name, (*UP, *FAILS)) for name in ("one", "two")]
    kept.store.record_all([(SITE, each, EventFacts()) for each in ends])
    kept.require(held=1)


def test_the_root_team_of_a_run_holds_no_slot(kept: Kept) -> None:
    kept.admit("one")
    kept.admit(ROOT, agent=ROOT)
    kept.record(ROOT, *UP)
    kept.require(held=1)


def test_a_refused_subagent_holds_no_slot(kept: Kept) -> None:
    kept.admit("one")
    with pytest.raises(BadInput):
        kept.admit("two", "one")
    kept.require(held=1)


def test_slots_are_counted_in_the_database_only_once(kept: Kept) -> None:
    for number in range(20):
        kept.admit(f"s{number}")
        kept.record(f"s{number}", *UP, *FAILS)
    assert kept.database.asked.count("slot_holders") == 1
