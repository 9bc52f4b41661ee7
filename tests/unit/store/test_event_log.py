"""events.jsonl: appended after the database, repaired at its end, never rewritten."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from retinue.core import events
from retinue.core.errors import IntegrityBroken
from retinue.core.events import Event
from retinue.core.ids import TaskId
from retinue.store.database import Database
from retinue.store.event_log import TAIL_BYTES, EventLogWriter
from retinue.store.reads import Records
from retinue.store.sqlite_store import SqliteStore
from retinue.store.verify import Verifier
from support.values import NOW, TASK

SITE = TASK.id


class Logged:
    """A task whose events are exported as they are recorded."""

    def __init__(self, folder: Path) -> None:
        self.tasks = folder / "tasks"
        self.log = self.tasks / SITE / "events.jsonl"
        self.log.parent.mkdir(parents=True)
        self.database = Database(folder / "retinue.db")
        self.records = Records(self.database)
        self.store = SqliteStore(self.database, self.records, lambda: NOW)
        self.complaints: list[str] = []
        self.exporter = self.new_exporter()
        created = Event(type=events.TASK_CREATED, summary="created")
        self.exporter(SITE, self.store.create_task(TASK, created))

    def new_exporter(self) -> EventLogWriter:
        """Simulate a restart: caches are empty."""
        return EventLogWriter(self.tasks, self.records, self.complaints.append)

    def record(self, *summaries: str, export: bool = True) -> None:
        new = [Event(type="task.note", summary=summary) for summary in summaries]
        recorded = self.store.record(SITE, new)
        if export:
            self.exporter(SITE, recorded)

    def numbers(self) -> list[int]:
        data = self.log.read_bytes()
        assert data.endswith(b"\n")
        return [json.loads(line)["seq"] for line in data.splitlines()]


@pytest.fixture
def logged(tmp_path: Path) -> Iterator[Logged]:
    logged = Logged(tmp_path)
    yield logged
    logged.database.close()


@pytest.mark.requirement("R44", "R124")
def test_every_event_is_one_line_and_the_log_only_grows(logged: Logged) -> None:
    seen = b""
    for number in range(5):
        logged.record(f"note {number}", "and one more")
        now = logged.log.read_bytes()
        assert now.startswith(seen) and len(now) > len(seen)
        seen = now
    assert logged.numbers() == list(range(1, 13))
    assert logged.log.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("cut", [1, 5, 40, 0])
def test_a_log_that_cannot_be_written_is_reported_as_short_not_damaged(
    logged: Logged, cut: int
) -> None:
    logged.record("one", "two", export=cut > 0)
    whole = logged.log.read_bytes()
    logged.log.write_bytes(whole[: len(whole) - cut])
    found = Verifier(logged.tasks.parent, logged.records).check_task(logged.records.get_task(SITE))
    (short,) = [each for each in found if "events.jsonl" in each["where"]]
    assert short["kind"] == "log_short"
    assert "it is repaired automatically; if not, free space" in short["message"]


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_torn_last_line_is_cut_and_written_again(logged: Logged, cut: int) -> None:
    logged.record("one", "two")
    whole = logged.log.read_bytes()
    logged.log.write_bytes(whole[:-cut])
    logged.new_exporter().write_missing_events(SITE)
    assert logged.log.read_bytes() == whole


def test_half_a_line_that_was_never_acknowledged_is_cut(logged: Logged) -> None:
    whole = logged.log.read_bytes()
    logged.log.write_bytes(whole + b'{"seq":3,"id":"si')
    logged.new_exporter().write_missing_events(SITE)
    assert logged.log.read_bytes() == whole


@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_missing_lines_at_the_end_are_written_again(logged: Logged, kept: int) -> None:
    logged.record("one", "two")
    whole = logged.log.read_bytes()
    logged.log.write_bytes(b"".join(whole.splitlines(keepends=True)[:kept]))
    logged.new_exporter().write_missing_events(SITE)
    assert logged.log.read_bytes() == whole


def test_a_missing_log_is_written_again(logged: Logged) -> None:
    logged.record("one")
    whole = logged.log.read_bytes()
    logged.log.unlink()
    logged.new_exporter().require_sound(SITE)
    assert logged.log.read_bytes() == whole


def test_committed_events_that_are_not_in_the_log_are_added(logged: Logged) -> None:
    logged.record("one", export=False)
    logged.record("two")
    assert logged.numbers() == [1, 2, 3, 4]
    (said,) = logged.complaints
    assert "event 3 was missing" in said


@pytest.mark.parametrize("length", [TAIL_BYTES - 1, TAIL_BYTES, 5 * TAIL_BYTES])
def test_lines_of_any_length_are_repaired(logged: Logged, length: int) -> None:
    logged.record("x" * length)
    logged.record("y" * length)
    whole = logged.log.read_bytes()
    for cut in (1, length // 2, length + 1):
        logged.log.write_bytes(whole[:-cut])
        logged.new_exporter().write_missing_events(SITE)
        assert logged.log.read_bytes() == whole


def test_a_log_ahead_of_the_database_stops_everything_and_is_left_alone(logged: Logged) -> None:
    ahead = logged.log.read_bytes() + b'{"seq":9,"payload":{}}\n'
    logged.log.write_bytes(ahead)
    with pytest.raises(IntegrityBroken) as broken:
        logged.new_exporter().require_sound(SITE)
    assert broken.value.code == "log_ahead"
    assert "event 9" in broken.value.message and "--rebuild" in broken.value.hint
    assert logged.log.read_bytes() == ahead


@pytest.mark.parametrize(
    "line", [b"garbage\n", b"\0\0\0\n", b"[]\n", b'{"seq":"x"}\n', b'{"seq":1e999}\n', b"\n"]
)
def test_a_damaged_last_line_is_named_and_left_alone(logged: Logged, line: bytes) -> None:
    damaged = logged.log.read_bytes() + line
    logged.log.write_bytes(damaged)
    with pytest.raises(IntegrityBroken) as broken:
        logged.new_exporter().write_missing_events(SITE)
    assert broken.value.code == "log_damaged"
    assert str(logged.log) in broken.value.message
    assert logged.log.read_bytes() == damaged


def test_a_foreign_line_is_noticed_at_the_next_event(logged: Logged) -> None:
    logged.log.write_bytes(logged.log.read_bytes() + b'{"seq":99,"payload":{}}\n')
    logged.record("one")
    assert len(logged.complaints) == 1 and "log ahead of database" in logged.complaints[0]


def test_a_failed_write_delays_the_log_and_loses_nothing(logged: Logged) -> None:
    whole = logged.log.read_bytes()
    logged.log.unlink()
    logged.log.mkdir()
    logged.record("one")
    assert len(logged.complaints) == 1 and str(logged.log) in logged.complaints[0]
    logged.log.rmdir()
    logged.record("two")
    assert logged.numbers() == [1, 2, 3, 4]
    assert logged.log.read_bytes().startswith(whole)


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        (4, "event 5 was missing, and written again from the database"),
        (1, "events 2 to 5 were missing, and written again from the database"),
        (0, "events 1 to 5 were missing, and written again from the database"),
    ],
)
@pytest.mark.parametrize("torn", [b"", b'{"seq": 9'])
def test_repairs_of_a_log_are_reported(
    logged: Logged, kept: int, message: str, torn: bytes
) -> None:
    logged.record("one", "two", "three")
    whole = logged.log.read_bytes()
    lines = whole.splitlines(keepends=True)
    logged.log.write_bytes(b"".join(lines[:kept]) + torn)
    exporter = logged.new_exporter()
    exporter.write_missing_events(SITE)
    assert logged.log.read_bytes() == whole
    (repair,) = exporter.list_repairs()
    cut = f"{len(torn)} bytes after its last whole line were cut off; " if torn else ""
    assert repair == {
        "kind": "log_repaired",
        "where": str(logged.log),
        "message": cut + message,
    }
    assert logged.complaints == [f"{logged.log}: {cut}{message}"]
    assert exporter.list_repairs(SITE) and not exporter.list_repairs(TaskId("other"))


def test_lines_removed_at_run_time_are_reported_with_the_next_event(
    logged: Logged,
) -> None:
    logged.record("one", "two")
    assert not logged.exporter.list_repairs()
    lines = logged.log.read_bytes().splitlines(keepends=True)
    logged.log.write_bytes(b"".join(lines[:-1]))
    logged.record("three")
    (repair,) = logged.exporter.list_repairs()
    assert repair["message"].startswith("event 4 was missing")
    assert logged.numbers() == [1, 2, 3, 4, 5]


def test_an_ordinary_append_is_not_reported_as_a_repair(logged: Logged) -> None:
    later = logged.new_exporter()
    recorded = logged.store.record(SITE, [Event(type="task.note", summary="next")])
    later(SITE, recorded)
    later.write_missing_events(SITE)
    assert not later.list_repairs() and not logged.complaints
