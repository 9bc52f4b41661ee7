"""Slots: known without being counted again, and never another number than a count would give."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retinue.domain import event as events
from retinue.domain.contract import ROOT
from retinue.domain.errors import BadInput, LimitExceeded
from retinue.domain.event import Event
from retinue.domain.ids import SubagentId
from retinue.domain.subagent import Draft
from retinue.ports import Admission, Facts
from retinue.store.database import Database
from retinue.store.records import SqliteRecords
from retinue.store.slots import Slots
from retinue.store.sqlite import SqliteStore
from support.values import CONTRACT, NOW, TASK

UP = (events.SUBAGENT_STARTED, events.STARTED)
FAILS = (events.FAILED, events.SUBAGENT_FAILED)
SITE, LIMIT = TASK.id, 5


class Counted(Database):
    """A database that knows what it was asked."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.asked: list[str] = []

    def rows(self, query: str, **values: Any) -> list[Any]:
        self.asked.append(query)
        return super().rows(query, **values)


class Kept:
    def __init__(self, path: Path) -> None:
        self.database = Counted(path)
        records = SqliteRecords(self.database)
        self.store = SqliteStore(self.database, records, lambda: NOW)
        self.store.create_task(TASK, Event(type=events.TASK_CREATED, summary="created"))

    def admit(self, *names: str, agent: str = CONTRACT.agent) -> None:
        contract = replace(CONTRACT, agent=agent)
        drafts = tuple(Draft(id=SubagentId(name), contract=contract) for name in names)
        self.store.admit(SITE, Admission(drafts=drafts, by="user", limit=LIMIT))

    def record(self, name: str, *kinds: str) -> None:
        self.store.record_all([(SITE, self.events(name, kinds), Facts())])

    def events(self, name: str, kinds: tuple[str, ...]) -> list[Event]:
        payload = {"final_status": "failed", "close_reason": "timeout"}
        return [
            Event(type=kind, subagent=SubagentId(name), attempt=1, summary="x", payload=payload)
            for kind in kinds
        ]

    def require(self, held: int) -> None:
        """So many are held, by a new count and by what the store goes by."""
        assert Slots(self.database).held(SITE) == held
        with pytest.raises(LimitExceeded, match=rf"active={held}\b"):
            self.admit(*(f"more-{number}" for number in range(LIMIT - held + 1)))


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    kept = Kept(tmp_path / "retinue.db")
    yield kept
    kept.database.close()


def test_slots_are_held_from_the_admission_to_the_end_but_for_the_time_of_a_question(
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


def test_ends_in_one_commit_free_their_slots(kept: Kept) -> None:
    kept.admit("one", "two", "three")
    ends = [kept.events(name, (*UP, *FAILS)) for name in ("one", "two")]
    kept.store.record_all([(SITE, each, Facts()) for each in ends])
    kept.require(held=1)


def test_the_team_of_a_run_holds_none(kept: Kept) -> None:
    kept.admit("one")
    kept.admit(ROOT, agent=ROOT)
    kept.record(ROOT, *UP)
    kept.require(held=1)


def test_whoever_was_refused_holds_none(kept: Kept) -> None:
    kept.admit("one")
    with pytest.raises(BadInput):
        kept.admit("two", "one")
    kept.require(held=1)


def test_they_are_counted_once_however_many_come_and_go(kept: Kept) -> None:
    for number in range(20):
        kept.admit(f"s{number}")
        kept.record(f"s{number}", *UP, *FAILS)
    assert kept.database.asked.count("slot_holders") == 1
