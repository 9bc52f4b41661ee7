"""events.jsonl: the events of the database as an append-only log of lines.

The database is authoritative. A line is written after its event is committed, and a torn last
line is cut off and written again. If a log has more events than the database, the steward stops
until a person has decided.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from retinue.core.errors import IntegrityBroken, StorageFailed
from retinue.core.events import Recorded
from retinue.core.ids import TaskId
from retinue.files import append, open_plain, require_appendable, storage_failures
from retinue.formats.event_json import events_to_lines
from retinue.store.reads import Records
from retinue.store.verify import Problem, make_problem

TAIL_BYTES = 4 * 1024
BATCH = 1000
MOST_REPAIRS = 100  # newest repairs kept in memory; the steward's log has all


class EventLogWriter:
    """Writer that keeps each task's log in step with the database."""

    def __init__(
        self,
        tasks: Path,
        records: Records,
        complain: Callable[[str], None],
        *,
        read_only: bool = False,
    ) -> None:
        """Create a writer; with `read_only` it leaves all logs as they are."""
        self._tasks = tasks
        self._records = records
        self._complain = complain
        self._written: dict[TaskId, tuple[int, int]] = {}  # last event number and size of each log
        self._read_only = read_only
        self._repairs: deque[tuple[TaskId, Problem]] = deque(maxlen=MOST_REPAIRS)

    def list_repairs(self, task: TaskId | None = None) -> list[Problem]:
        """Return the repairs in the log of one task, or of all, since this process started."""
        return [done for repaired, done in self._repairs if task in (None, repaired)]

    def __call__(self, task: TaskId, recorded: Sequence[Recorded]) -> None:
        """Append these events to the log, or later if the disk refuses now."""
        try:
            path = self._get_path(task)
            size = _get_size(path)
            # Another size means that the file was changed or a write failed: find its end and
            # repair it.
            if self._written.get(task) != (recorded[0].seq - 1, size):
                before = recorded[0].seq - 1
                self._write_missing_events(
                    task, self._records.get_task(task).last_seq, expected=before
                )
                return
            lines = events_to_lines(recorded)
            append(path, lines)
            self._written[task] = (recorded[-1].seq, size + len(lines))
        except (IntegrityBroken, StorageFailed) as error:
            # The events are committed, so recording them succeeded. The next write repairs the log.
            self._written.pop(task, None)
            self._complain(error.message)

    def forget_task(self, task: TaskId) -> None:
        """Drop what is known of the log of a deleted task."""
        self._written.pop(task, None)

    def write_missing_events(self, task: TaskId) -> None:
        """Append to the log every event that it lacks.

        Raises:
            IntegrityBroken: the log is ahead of the database, or its last line is damaged.
            StorageFailed: the disk refused.
        """
        if not self._read_only:
            last = self._records.get_task(task).last_seq
            self._write_missing_events(task, last, expected=last)

    def write_all_missing_events(self, known: Mapping[TaskId, int]) -> None:
        """Append to every log the events that it lacks, as far as the disk allows.

        Raises:
            IntegrityBroken: a log is ahead of the database; it was not changed.
        """
        for task, last in known.items():
            try:
                self._write_missing_events(task, last, expected=last)
            except StorageFailed as error:
                self._complain(error.message)
            except IntegrityBroken as error:
                if error.code == "log_ahead":
                    raise
                self._complain(error.message)

    def require_sound(self, task: TaskId) -> None:
        """Bring the log up to date at the first access of this process to a task.

        Raises:
            IntegrityBroken: the log is ahead of the database, or its last line is damaged.
        """
        if task not in self._written:
            try:
                self.write_missing_events(task)
            except StorageFailed as error:
                self._complain(error.message)

    def require_writable(self, task: TaskId) -> None:
        """Require that the log is up to date and can be appended to.

        Raises:
            IntegrityBroken: the log is ahead of the database, or its last line is damaged.
            StorageFailed: the disk refuses it.
        """
        path = self._get_path(task)
        if task not in self._written or not os.path.exists(path):
            self.write_missing_events(task)
        require_appendable(path)

    def _write_missing_events(self, task: TaskId, last: int, *, expected: int) -> None:
        """Append all events up to `last`; report it if the log ended before `expected`."""
        path = self._get_path(task)
        written, whole, size = _find_end(path)
        kept = whole
        if written > last:
            raise make_log_ahead_error(
                f"{path} ends with event {written}, the database with {last}"
            )
        # A torn last line: its event is committed and is written again below.
        if whole < size:
            with storage_failures(path), open(open_plain(path, os.O_WRONLY), "wb") as log:
                log.truncate(whole)
        missing = (written + 1, expected) if written < expected else None
        while written < last:
            batch = self._records.list_events(task, after=written, limit=BATCH)
            if not batch:
                break  # a gap in the database, which verify reports
            lines = events_to_lines(batch)
            append(path, lines)
            whole += len(lines)
            written = batch[-1].seq
        self._written[task] = (written, whole)
        self._report(task, cut=size - kept, missing=missing)

    def _report(self, task: TaskId, *, cut: int, missing: tuple[int, int] | None) -> None:
        """Report a repair in the steward's log and to verify; without one, do nothing."""
        done = [f"{cut} bytes after its last whole line were cut off"] if cut else []
        if missing is not None:
            first, last = missing
            which = f"event {first} was" if first == last else f"events {first} to {last} were"
            done.append(f"{which} missing, and written again from the database")
        if done:
            message = "; ".join(done)
            path = self._get_path(task)
            self._repairs.append((task, make_problem("log_repaired", path, message)))
            self._complain(f"{path}: {message}")

    def _get_path(self, task: TaskId) -> str:
        return f"{self._tasks}/{task}/events.jsonl"


def make_log_ahead_error(what: str) -> IntegrityBroken:
    return IntegrityBroken(
        f"log ahead of database: {what}",
        code="log_ahead",
        hint="nothing was overwritten; 'retinue verify --rebuild' takes the logs as the truth",
    )


def _find_end(path: str) -> tuple[int, int, int]:
    """Return the event number of the last whole line, the offset of its end, and the file size.

    Bytes after the last whole line were never acknowledged.
    """
    try:
        with storage_failures(path), open(open_plain(path, os.O_RDONLY), "rb") as log:
            size = log.seek(0, os.SEEK_END)
            start, tail = _read_tail(log, size)
    except StorageFailed as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return 0, 0, 0
        raise
    whole = tail.rfind(b"\n") + 1
    lines = tail[:whole].split(b"\n")
    seq = _parse_seq(lines[-2], path) if len(lines) > 1 else 0
    return seq, start + whole, size


def _read_tail(log: BinaryIO, size: int) -> tuple[int, bytes]:
    """Return the offset of the tail and the tail, which contains at least one whole line."""
    length = TAIL_BYTES
    while True:
        start = max(0, size - length)
        log.seek(start)
        tail = log.read()
        if start == 0 or tail.count(b"\n") > 1:
            return start, tail
        length *= 4


def _parse_seq(line: bytes, path: str) -> int:
    try:
        return int(json.loads(line)["seq"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise IntegrityBroken(
            f"the last line of {path} is not an event",
            code="log_damaged",
            hint="'retinue verify' names the line; 'retinue verify --rebuild' repairs it",
        ) from None


def _get_size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return -1
