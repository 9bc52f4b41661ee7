"""events.jsonl: the database's events as lines that only ever grow.

The database is the truth. A line is written after its event is committed, a
torn last line is cut and written again, and a log that knows more than the
database stops everything until a person has looked.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from retinue.domain.errors import IntegrityBroken, StorageFailed
from retinue.domain.event import Recorded
from retinue.domain.ids import TaskId
from retinue.files import append, open_plain, storage_failures
from retinue.store.records import SqliteRecords
from retinue.wire.event import event_to_line

TAIL_BYTES = 4 * 1024
BATCH = 1000


class Exporter:
    """Keeps every task's log in step with the database."""

    def __init__(
        self, tasks: Path, records: SqliteRecords, complain: Callable[[str], None]
    ) -> None:
        self._tasks = tasks
        self._records = records
        self._complain = complain
        self._written: dict[TaskId, tuple[int, int]] = {}  # the log's last seq, and its size

    def __call__(self, task: TaskId, recorded: Sequence[Recorded]) -> None:
        """The log ends with these events, or will as soon as the disk allows."""
        try:
            path = self._path(task)
            size = _size(path)
            if self._written.get(task) != (recorded[0].seq - 1, size):
                self.catch_up(task)
                return
            lines = b"".join(map(event_to_line, recorded))
            append(path, lines)
            self._written[task] = (recorded[-1].seq, size + len(lines))
        except (IntegrityBroken, StorageFailed) as error:
            # The events are committed: whoever recorded them has done so, whatever the log is like.
            self._written.pop(task, None)
            self._complain(error.message)

    def catch_up(self, task: TaskId) -> None:
        """The log holds every event of the task.

        Raises:
            IntegrityBroken: the log is ahead of the database, or its last line is damaged.
            StorageFailed: the disk refused a line.
        """
        self._catch_up(task, self._records.task(task).last_seq)

    def catch_up_all(self, known: Mapping[TaskId, int]) -> None:
        """Every log holds the events of its task, as far as the disk allows.

        Raises:
            IntegrityBroken: a log is ahead of the database. Nothing was changed in it.
        """
        for task, last in known.items():
            try:
                self._catch_up(task, last)
            except StorageFailed as error:
                self._complain(error.message)
            except IntegrityBroken as error:
                if error.code == "log_ahead":
                    raise
                self._complain(error.message)

    def require_sound(self, task: TaskId) -> None:
        """The first look at a task in this process has brought its log up to date.

        Raises:
            IntegrityBroken: the log is ahead of the database, or its last line is damaged.
        """
        if task not in self._written:
            try:
                self.catch_up(task)
            except StorageFailed as error:
                self._complain(error.message)

    def require_writable(self, task: TaskId) -> None:
        """The log is up to date, and takes what comes next.

        Raises:
            IntegrityBroken: the log is ahead of the database, or its last line is damaged.
            StorageFailed: the disk refuses it.
        """
        path = self._path(task)
        if task not in self._written or not os.path.exists(path):
            self.catch_up(task)
        with storage_failures(path):
            os.close(open_plain(path, os.O_WRONLY | os.O_APPEND))

    def _catch_up(self, task: TaskId, last: int) -> None:
        path = self._path(task)
        written, whole, size = _end_of(path)
        if written > last:
            raise log_ahead(f"{path} ends with event {written}, the database with {last}")
        if whole < size:
            with storage_failures(path), open(open_plain(path, os.O_WRONLY), "wb") as log:
                log.truncate(whole)
        while written < last:
            batch = self._records.events(task, after=written, limit=BATCH)
            if not batch:
                break  # a gap in the database, which verify names
            lines = b"".join(map(event_to_line, batch))
            append(path, lines)
            whole += len(lines)
            written = batch[-1].seq
        self._written[task] = (written, whole)

    def _path(self, task: TaskId) -> str:
        return f"{self._tasks}/{task}/events.jsonl"


def log_ahead(what: str) -> IntegrityBroken:
    return IntegrityBroken(
        f"log ahead of database: {what}",
        code="log_ahead",
        hint="nothing was overwritten; 'retinue verify --rebuild' takes the logs as the truth",
    )


def _end_of(path: str) -> tuple[int, int, int]:
    """The seq of the last whole line, the size up to its end, and that of the file.

    What follows the last whole line was never acknowledged.
    """
    try:
        with storage_failures(path), open(open_plain(path, os.O_RDONLY), "rb") as log:
            size = log.seek(0, os.SEEK_END)
            start, tail = _tail(log, size)
    except StorageFailed as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return 0, 0, 0
        raise
    whole = tail.rfind(b"\n") + 1
    lines = tail[:whole].split(b"\n")
    seq = _seq_of(lines[-2], path) if len(lines) > 1 else 0
    return seq, start + whole, size


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


def _seq_of(line: bytes, path: str) -> int:
    try:
        return int(json.loads(line)["seq"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise IntegrityBroken(
            f"the last line of {path} is not an event",
            code="log_damaged",
            hint="'retinue verify' names the line; 'retinue verify --rebuild' repairs it",
        ) from None


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return -1
