"""The store: atomic calls, and immutable events and contracts."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retinue.core import events
from retinue.core.errors import (
    BadInput,
    IllegalTransition,
    IntegrityBroken,
    LimitExceeded,
    NotFound,
    Refused,
    StorageFailed,
)
from retinue.core.events import Event
from retinue.core.ids import SubagentId, TaskId
from retinue.core.lifecycle import State
from retinue.core.result import Status, TokenUsage
from retinue.core.subagent import Attempt, Draft, Subagent
from retinue.formats.contract_json import contract_to_text
from retinue.ports import Admission, EventFacts
from retinue.store.database import SCHEMA_VERSION, Database
from retinue.store.reads import Records
from retinue.store.sqlite_store import SqliteStore
from support import values
from support.values import CONTRACT, NOW, TASK

SITE = TASK.id
USAGE = TokenUsage(input_tokens=3, output_tokens=2, estimated_cost=0.5)
RESULT = replace(values.RESULT, token_usage=USAGE)


class Kept:
    """A store with a second connection to its file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = Database(path)
        self.records = Records(self.database)
        self.store = SqliteStore(self.database, self.records, lambda: NOW)

    def admit(self, *names: str | None, **terms: Any) -> list[Subagent]:
        drafts = tuple(
            Draft(id=None if name is None else SubagentId(name), contract=CONTRACT)
            for name in names
        )
        given: dict[str, Any] = {"drafts": drafts, "by": "user", "limit": 2}
        admission = Admission(**given | terms)
        return self.store.admit(SITE, admission)[0]

    def record(self, name: str, *kinds: str, facts: EventFacts | None = None) -> None:
        self.store.record(SITE, [event(kind, name) for kind in kinds], facts or EventFacts())

    def settle(self, name: str) -> None:
        self.record(name, *FAILS, facts=EventFacts(result=replace(RESULT, status=Status.ERROR)))

    def dump(self) -> list[str]:
        """Return all rows of the file, read by a separate connection."""
        with closing(sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)) as connection:
            return list(connection.iterdump())


FAILS = (events.SUBAGENT_STARTED, events.STARTED, events.FAILED, events.SUBAGENT_FAILED)


def event(kind: str, name: str | None = "bio") -> Event:
    payload = {"final_status": "failed", "close_reason": "timeout", "outcome": "failed"}
    subagent = None if name is None else SubagentId(name)
    return Event(type=kind, subagent=subagent, attempt=1, summary="x", payload=payload)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    kept = Kept(tmp_path / "retinue.db")
    kept.store.create_task(TASK, Event(type=events.TASK_CREATED, summary="created"))
    yield kept
    kept.database.close()


def test_a_locked_database_is_not_reported_as_a_full_disk(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retinue.store.database.BUSY_SECONDS", 0.05)
    with closing(sqlite3.connect(kept.path)) as other, closing(Database(kept.path)) as ours:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageFailed) as refused, ours.transaction(durable=True):
            pass
    assert "SQLITE_BUSY" in refused.value.message
    assert "another program" in refused.value.hint and "space" not in refused.value.hint


class TestQueue:
    def test_the_event_of_a_new_subagent_contains_its_contract(self, kept: Kept) -> None:
        kept.admit("first", queue=True, limit=2)
        kept.admit("second", "third", queue=True, limit=2)
        kept.admit("fourth", queue=True, limit=2)
        found = {
            str(each.event.subagent): each.event.payload.get("context_json")
            for each in kept.records.list_events(SITE, after=0, limit=100)
            if each.event.type == events.SUBAGENT_CREATED
        }
        for name in ("first", "second", "third", "fourth"):
            known = kept.records.get_subagent(SITE, name)
            assert found[name] == contract_to_text(known.contract)


class TestAtomicity:
    @pytest.mark.requirement("R79", "R124")
    def test_an_illegal_event_rolls_back_its_whole_batch(self, kept: Kept) -> None:
        kept.admit("bio")
        before = kept.dump()
        batch = [event(events.SUBAGENT_STARTED), event(events.STARTED), event(events.STARTED, "no")]
        with pytest.raises(NotFound):
            kept.store.record(SITE, batch)
        with pytest.raises(IllegalTransition):
            kept.record("bio", *FAILS, events.SUBAGENT_CLOSED, events.STARTED)
        assert kept.dump() == before

    @pytest.mark.requirement("R84", "R106")
    def test_row_contract_and_event_of_a_subagent_are_created_together(self, kept: Kept) -> None:
        (bio,) = kept.admit("bio")
        assert bio.standing.state is State.CREATED
        (recorded,) = kept.records.list_events(SITE, after=2, limit=9)
        assert recorded.event.type == events.SUBAGENT_CREATED
        assert recorded.contract_sha256 == bio.contract_sha256
        assert Records(kept.database).get_subagent(SITE, "bio").contract == CONTRACT

    def test_a_call_of_several_is_admitted_whole_or_not_at_all(self, kept: Kept) -> None:
        kept.admit("bio")
        before = kept.dump()
        with pytest.raises(BadInput):
            kept.admit("docs", "BIO", limit=9)
        with pytest.raises(LimitExceeded):
            kept.admit("docs", "more")
        assert kept.dump() == before

    def test_cached_rows_equal_the_rows_in_the_file(self, kept: Kept) -> None:
        def same() -> bool:
            read = Records(kept.database)
            pairs = [
                (kept.records.get_subagent(SITE, n), read.get_subagent(SITE, n)) for n in names
            ]
            return kept.records.get_task(SITE) == read.get_task(SITE) and all(
                a == b for a, b in pairs
            )

        names = [each.id for each in kept.admit("bio", None)]
        assert same()
        kept.record("bio", *FAILS)
        assert same()
        with pytest.raises(IllegalTransition):
            kept.record("bio", events.SUBAGENT_CLOSED, events.SUBAGENT_CLOSED)
        assert same()
        kept.store.record(SITE, [event(events.RUN_ENDED, None), event(events.TASK_CLOSED, None)])
        assert same()

    def test_writings_in_one_commit_are_applied_in_order(self, kept: Kept) -> None:
        kept.admit("bio", "docs")
        ended = [event(kind, "docs") for kind in FAILS]
        refused = [event(events.STARTED, "docs"), event(events.SUBAGENT_CLOSED, "docs")]
        begun = [event(events.SUBAGENT_STARTED), event(events.STARTED)]
        first, second, third = kept.store.record_all(
            [
                (SITE, begun, EventFacts()),
                (SITE, refused, EventFacts()),
                (SITE, ended, EventFacts(result=RESULT)),
            ]
        )
        assert isinstance(second, IllegalTransition)
        assert [each.seq for each in (*first, *third)] == [5, 6, 7, 8, 9, 10]  # type: ignore[misc]
        read = Records(kept.database)
        assert [each.seq for each in read.list_events(SITE, after=4, limit=99)] == [
            5,
            6,
            7,
            8,
            9,
            10,
        ]
        assert read.get_subagent(SITE, "bio").standing.state is State.RUNNING
        assert read.get_subagent(SITE, "docs").standing.state is State.FAILED
        assert kept.records.get_subagent(SITE, "docs") == read.get_subagent(SITE, "docs")

    def test_one_subagent_may_move_twice_in_a_commit(self, kept: Kept) -> None:
        kept.admit("bio")
        begun = [event(events.SUBAGENT_STARTED), event(events.STARTED)]
        told = [event(events.MESSAGE_SENT)]
        closed = [event(events.RUN_ENDED, None), event(events.TASK_CLOSED, None)]
        kept.store.record_all([(SITE, new, EventFacts()) for new in (begun, told, closed, told)])
        read = Records(kept.database)
        assert [each.seq for each in read.list_events(SITE, after=3, limit=99)] == [
            4,
            5,
            6,
            7,
            8,
            9,
        ]
        assert read.get_subagent(SITE, "bio").standing.in_attempt
        assert kept.records.get_subagent(SITE, "bio") == read.get_subagent(SITE, "bio")
        assert kept.records.get_task(SITE) == read.get_task(SITE)
        assert (read.get_task(SITE).state, read.get_task(SITE).last_seq) == ("closed", 9)

    def test_a_failed_commit_records_none_of_its_writings(self, kept: Kept) -> None:
        kept.admit("bio", "docs")
        before = kept.dump()
        begun = {name: [event(events.SUBAGENT_STARTED, name)] for name in ("bio", "docs")}
        with closing(sqlite3.connect(kept.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            kept.database._connection.execute("PRAGMA busy_timeout = 0")
            outcomes = kept.store.record_all([(SITE, new, EventFacts()) for new in begun.values()])
        assert [type(outcome) for outcome in outcomes] == [StorageFailed, StorageFailed]
        assert kept.dump() == before
        kept.record("docs", events.SUBAGENT_STARTED)
        assert kept.records.get_subagent(SITE, "bio").standing.state is State.CREATED

    def test_a_row_equals_the_fold_of_its_events(self, kept: Kept) -> None:
        kept.admit("bio")
        kept.record("bio", *FAILS, events.SUBAGENT_CLOSED)
        standing = Records(kept.database).get_subagent(SITE, "bio").standing
        assert (standing.state, standing.final_status) == (State.CLOSED, "failed")
        assert standing.close_reason == "timeout"
        assert kept.records.get_task(SITE).last_seq == 8

    def test_a_write_refused_by_the_disk_is_reported_and_rolled_back(self, kept: Kept) -> None:
        kept.admit("bio")
        before = kept.dump()
        kept.database._connection.execute("PRAGMA max_page_count = 1")
        big = replace(event(events.SUBAGENT_STARTED), summary="x" * 1_000_000)
        with pytest.raises(StorageFailed) as failed:
            kept.store.record(SITE, [big])
        assert failed.value.code == "disk_full"
        assert str(kept.path) in failed.value.message and failed.value.hint
        assert kept.dump() == before


class TestImmutability:
    @pytest.mark.requirement("R100", "R124")
    @pytest.mark.parametrize(
        ("statement", "why"),
        [
            ("UPDATE sub_agents SET context_json = '{}'", "a contract is never changed"),
            ("UPDATE sub_agents SET contract_sha256 = ''", "a contract is never changed"),
            ("UPDATE sub_agents SET step_idx = 7", "a contract is never changed"),
            ("DELETE FROM sub_agents", "a subagent is never deleted"),
            ("UPDATE events SET summary = 'other'", "an event is never changed"),
            ("DELETE FROM events WHERE seq = 1", "an event is never deleted"),
        ],
    )
    def test_contracts_and_events_cannot_be_changed_even_by_hand(
        self, kept: Kept, statement: str, why: str
    ) -> None:
        kept.admit("bio")
        before = kept.dump()
        with closing(sqlite3.connect(kept.path)) as connection:
            with pytest.raises(sqlite3.IntegrityError, match=why):
                connection.execute(statement)
            connection.commit()
        assert kept.dump() == before

    def test_a_sequence_number_is_used_once(self, kept: Kept) -> None:
        kept.admit("bio")
        with closing(sqlite3.connect(kept.path)) as connection:
            copy = "INSERT INTO events SELECT * FROM events WHERE seq = 1"
            with pytest.raises(sqlite3.IntegrityError):
                connection.execute(copy)


class TestSlots:
    @pytest.mark.requirement("R23", "R26")
    def test_only_created_and_running_subagents_hold_a_slot(self, kept: Kept) -> None:
        kept.admit("one", "two")
        with pytest.raises(LimitExceeded, match="active=2, limit=2"):
            kept.admit("three")
        kept.settle("one")
        kept.admit("three")
        kept.record("three", events.SUBAGENT_STARTED, events.STARTED, events.BLOCKED)
        kept.admit("four")
        kept.record("three", events.GATE_ANSWERED)
        with pytest.raises(LimitExceeded, match="active=3, limit=2"):
            kept.admit("five")

    def test_a_queueing_call_ignores_the_slot_limit(self, kept: Kept) -> None:
        assert len(kept.admit(*[None] * 5, queue=True)) == 5

    def test_steps_and_names_count_up_and_skip_taken_ones(self, kept: Kept) -> None:
        kept.admit("Subagent-2")
        admitted = kept.admit(None, None, limit=9)
        assert [(each.id, each.step_idx) for each in admitted] == [
            ("subagent-3", 1),
            ("subagent-4", 2),
        ]
        assert [each.contract.parent.step_idx for each in admitted] == [1, 2]

    def test_a_closed_task_refuses_new_subagents(self, kept: Kept) -> None:
        kept.store.record(SITE, [event(events.RUN_ENDED, None), event(events.TASK_CLOSED, None)])
        with pytest.raises(Refused) as refused:
            kept.admit("bio")
        assert refused.value.code == "task_closed"
        assert kept.records.get_task(SITE).outcome == "failed"

    def test_ids_are_unique_without_regard_to_case_and_never_reused(self, kept: Kept) -> None:
        kept.admit("bio")
        kept.record("bio", *FAILS, events.SUBAGENT_CLOSED)
        with pytest.raises(BadInput) as refused:
            kept.admit("Bio")
        assert refused.value.code == "duplicate_id"
        with pytest.raises(BadInput):
            kept.store.create_task(
                replace(TASK, id=TaskId("SITE")), Event(type=events.TASK_CREATED, summary="x")
            )


class TestKeys:
    def test_a_repeated_request_returns_the_same_subagents(self, kept: Kept) -> None:
        terms = {"key": "k", "request_sha256": "a"}
        first = kept.admit(None, None, **terms)
        before = kept.dump()
        assert [each.id for each in kept.admit(None, None, **terms)] == [each.id for each in first]
        assert kept.dump() == before

    def test_the_same_key_for_another_request_is_refused(self, kept: Kept) -> None:
        kept.admit(None, key="k", request_sha256="a")
        with pytest.raises(BadInput) as refused:
            kept.admit(None, key="k", request_sha256="b")
        assert refused.value.code == "key_conflict"

    def test_a_refused_request_does_not_use_up_its_key(self, kept: Kept) -> None:
        with pytest.raises(LimitExceeded):
            kept.admit(None, None, None, key="k", request_sha256="a")
        assert len(kept.admit(None, key="k", request_sha256="b")) == 1


class TestDeliveries:
    def deliver(self, kept: Kept, consumer: str = "c", *, peek: bool = False) -> str | None:
        settled = kept.store.deliver(SITE, consumer, peek=peek)
        return None if settled is None else settled.id

    @pytest.mark.requirement("R36")
    def test_each_result_is_delivered_once_in_the_order_of_settling(self, kept: Kept) -> None:
        kept.admit("one", "two", "three", queue=True)
        assert self.deliver(kept) is None
        kept.settle("two")
        kept.settle("one")
        assert [self.deliver(kept) for _ in range(3)] == ["two", "one", None]
        kept.settle("three")
        assert [self.deliver(kept) for _ in range(2)] == ["three", None]

    def test_peek_marks_nothing_as_delivered(self, kept: Kept) -> None:
        kept.admit("one")
        kept.settle("one")
        assert [self.deliver(kept, peek=True) for _ in range(2)] == ["one", "one"]
        assert self.deliver(kept) == "one"
        assert self.deliver(kept, peek=True) is None

    def test_each_consumer_receives_all_results(self, kept: Kept) -> None:
        kept.admit("one")
        kept.settle("one")
        assert self.deliver(kept, "a") == self.deliver(kept, "b") == "one"

    def test_a_blocked_subagent_is_delivered_again_when_it_settles_again(self, kept: Kept) -> None:
        kept.admit("one")
        kept.record("one", events.SUBAGENT_STARTED, events.STARTED, events.BLOCKED)
        assert self.deliver(kept) == "one"
        kept.record("one", events.GATE_ANSWERED, events.STARTED)
        assert self.deliver(kept) is None
        kept.record("one", events.SUBAGENT_FAILED)
        assert self.deliver(kept) == "one"

    def test_a_revoked_delivery_is_repeated_and_no_other(self, kept: Kept) -> None:
        kept.admit("one", "two", "three", queue=True)
        for name in ("one", "two", "three"):
            kept.settle(name)
        lost = kept.store.deliver(SITE, "c")
        assert lost is not None and lost.id == "one"
        assert self.deliver(kept) == "two"
        kept.store.revoke_delivery(lost, "c")
        assert [self.deliver(kept) for _ in range(3)] == ["one", "three", None]

    def test_mark_delivered_is_true_only_the_first_time(self, kept: Kept) -> None:
        kept.admit("one")
        kept.settle("one")
        one = kept.records.get_subagent(SITE, "one")
        assert [kept.store.mark_delivered(one, "c") for _ in range(2)] == [True, False]
        kept.store.revoke_delivery(one, "c")
        assert kept.store.mark_delivered(one, "c")


class TestFacts:
    def test_attempts_results_and_totals_are_read_back(self, kept: Kept) -> None:
        (bio,) = kept.admit("bio")
        up = Attempt(
            number=1, boot_id="b", pid=7, start_ticks=8, started_at="", started_monotonic_ms=9
        )
        kept.record("bio", events.SUBAGENT_STARTED, events.STARTED, facts=EventFacts(attempt=up))
        facts = EventFacts(ended_attempt=1, ended_result=RESULT, result=RESULT)
        kept.record("bio", events.COMPLETED, events.SUBAGENT_WAITING, facts=facts)
        (attempt,) = kept.records.list_attempts(bio)
        assert attempt == replace(up, started_at=NOW, ended_at=NOW, result=RESULT)
        assert kept.records.get_result(bio) == RESULT
        totals = kept.records.sum_totals(SITE)
        counts = kept.records.count_by_status(SITE)
        assert (totals.subagents, counts.unclosed, counts.failed) == (1, 1, 0)
        assert (totals.input_tokens, totals.output_tokens, totals.estimated_cost) == (3, 2, 0.5)

    def test_a_gate_opens_with_questions_and_closes_with_an_answer_or_the_end(
        self, kept: Kept
    ) -> None:
        kept.admit("one", "two")
        for name in ("one", "two"):
            kept.record(name, events.SUBAGENT_STARTED, events.STARTED)
            kept.record(name, events.BLOCKED, facts=EventFacts(questions=("which?",)))
        assert [gate.state for gate in kept.records.list_gates(SITE)] == ["open", "open"]
        kept.record("one", events.GATE_ANSWERED, facts=EventFacts(answer="red"))
        kept.record("two", events.CANCELLED, events.SUBAGENT_FAILED)
        gates = kept.records.list_gates(SITE)
        assert [(g.id, g.state, g.answer) for g in gates] == [
            ("one-1", "approved", "red"),
            ("two-1", "rejected", ""),
        ]

    def test_unknown_tasks_and_subagents_raise_not_found(self, kept: Kept) -> None:
        with pytest.raises(NotFound) as no_task:
            kept.records.get_subagent(TaskId("nothing"), "bio")
        assert no_task.value.code == "unknown_task"
        with pytest.raises(NotFound) as nobody:
            kept.records.get_subagent(SITE, "bio")
        assert nobody.value.code == "unknown_subagent"


class TestFile:
    def test_only_its_owner_can_read_the_file(self, kept: Kept) -> None:
        assert kept.path.stat().st_mode & 0o777 == 0o600

    def test_records_survive_closing_and_opening_the_database(self, kept: Kept) -> None:
        kept.admit("bio")
        kept.database.close()
        again = Kept(kept.path)
        assert again.records.get_subagent(SITE, "bio").contract == CONTRACT
        again.database.close()

    def test_a_file_that_is_not_a_database_is_not_changed(self, tmp_path: Path) -> None:
        path, content = tmp_path / "retinue.db", b"no database at all " * 99
        path.write_bytes(content)
        with pytest.raises(IntegrityBroken) as broken:
            Database(path)
        assert broken.value.code == "database_damaged"
        assert path.read_bytes() == content

    def test_a_file_of_a_later_version_is_refused(self, kept: Kept) -> None:
        kept.database.close()
        with closing(sqlite3.connect(kept.path)) as connection:
            connection.execute("PRAGMA user_version = 999")
        with pytest.raises(IntegrityBroken) as broken:
            Database(kept.path)
        assert broken.value.code == "schema_version"

    def test_a_file_of_the_first_version_is_brought_up_to_date(self, kept: Kept) -> None:
        kept.database.close()
        with closing(sqlite3.connect(kept.path)) as connection:
            connection.execute("ALTER TABLE attempts DROP COLUMN place")
            connection.execute("ALTER TABLE sub_agents DROP COLUMN node_losses")
            connection.execute("ALTER TABLE ledger DROP COLUMN seconds")
            connection.execute("DROP TABLE deleted_tasks")
            connection.execute("PRAGMA user_version = 1")
        with closing(Database(kept.path, read_only=True)) as untouched:
            assert untouched.fetch_rows("attempts", task_id="none", sub_agent_id="none") == []
        Database(kept.path).close()
        with closing(sqlite3.connect(kept.path)) as connection:
            names = [row[1] for row in connection.execute("PRAGMA table_info(attempts)")]
            assert names[-1] == "place"
            assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
