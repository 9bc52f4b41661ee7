"""events.jsonl: the database's events as lines that only ever grow.

The database is the truth. A line is written after its event is committed, a
torn last line is cut and written again, and a log that knows more than the
database stops everything until a person has looked.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from retinue.domain.errors import IntegrityBroken, StorageFailed
from retinue.domain.event import Recorded
from retinue.domain.ids import TaskId
from retinue.files import append, storage_failures
from retinue.store.records import SqliteRecords
from retinue.wire.event import event_to_line

TAIL_BYTES = 64 * 1024
BATCH = 1000


class Exporter:
    """Keeps every task's log in step with the database."""

    def __init__(
        self, tasks: Path, records: SqliteRecords, complain: Callable[[str], None]
    ) -> None:
        self._tasks = tasks
        self._records = records
        self._complain = complain
        self._written: dict[TaskId, int] = {}

    def __call__(self, task: TaskId, recorded: Sequence[Recorded]) -> None:
        """The log ends with these events, or will as soon as the disk allows."""
        try:
            known = self._written.get(task)
            if known is None or known != recorded[0].seq - 1:
                self.catch_up(task)
                return
            append(self._path(task), b"".join(map(event_to_line, recorded)))
            self._written[task] = recorded[-1].seq
        except StorageFailed as error:
            self._written.pop(task, None)
            self._complain(error.message)

    def catch_up(self, task: TaskId) -> None:
        """The log holds every event of the task.

        Raises:
            IntegrityBroken: the log is ahead of the database.
            StorageFailed: the disk refused a line.
        """
        path = self._path(task)
        last = self._records.task(task).last_seq
        written = _repair_tail(path)
        if written > last:
            raise IntegrityBroken(
                f"{path} is ahead of the database: it ends with event {written}, the database "
                f"with {last}",
                code="log_ahead",
                hint="nothing was overwritten; 'retinue verify --rebuild' takes the log as truth",
            )
        while batch := self._records.events(task, after=written, limit=BATCH):
            append(path, b"".join(map(event_to_line, batch)))
            written = batch[-1].seq
        self._written[task] = written

    def require_sound(self, task: TaskId) -> None:
        """The first look at a task in this process has brought its log up to date.

        Raises:
            IntegrityBroken: the log is ahead of the database.
        """
        if task not in self._written:
            try:
                self.catch_up(task)
            except StorageFailed as error:
                self._complain(error.message)

    def _path(self, task: TaskId) -> Path:
        return self._tasks / task / "events.jsonl"


def _repair_tail(path: Path) -> int:
    """The seq of the last whole line; what follows it was never acknowledged and is cut."""
    try:
        with storage_failures(path), path.open("r+b") as log:
            size = log.seek(0, os.SEEK_END)
            start, tail = _tail(log, size)
            whole = tail.rfind(b"\n") + 1
            if whole < len(tail):
                log.truncate(start + whole)
    except StorageFailed as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return 0
        raise
    lines = tail[:whole].split(b"\n")
    return _seq_of(lines[-2]) if len(lines) > 1 else 0


def _tail(log: BinaryIO, size: int) -> tuple[int, bytes]:
    """Where the tail starts, and the tail: long enough to hold the last whole line."""
    length = TAIL_BYTES
    while True:
        start = max(0, size - length)
        log.seek(start)
        tail = log.read()
        if start == 0 or tail.count(b"\n") > 1:
            return start, tail
        length *= 4


def _seq_of(line: bytes) -> int:
    try:
        return int(json.loads(line)["seq"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise IntegrityBroken(
            "the last line of a log is not an event",
            code="log_damaged",
            hint="'retinue verify' names the line; 'retinue verify --rebuild' repairs it",
        ) from None
