"""What can still be read of a database that may be damaged, too old, or not there at all."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from retinue.domain.event import Recorded
from retinue.domain.ids import TaskId
from retinue.store.database import load_queries
from retinue.store.rows import recorded_of


class Remains:
    """Reads, changes nothing, and takes every damage for an end of what there is to read."""

    def __init__(self, connection: sqlite3.Connection | None) -> None:
        self._connection = connection
        self._queries = load_queries()

    def events(self, task: TaskId) -> list[Recorded]:
        found: list[Recorded] = []
        with suppress(ValueError, TypeError, KeyError):
            for row in self.rows("events_after", task_id=task, after=0, limit=-1):
                found.append(recorded_of(row))
        return found

    def text(self, query: str, column: str, **values: Any) -> str:
        """One value of the first row, or nothing."""
        for row in self.rows(query, **values):
            return str(row[column])
        return ""

    def rows(self, query: str, **values: Any) -> Iterator[sqlite3.Row]:
        if self._connection is None:
            return
        with suppress(sqlite3.Error, IndexError):
            yield from self._connection.execute(self._queries[query], values)


@contextmanager
def read_remains(path: Path) -> Iterator[Remains]:
    """The remains of a database that nobody writes."""
    if not path.is_file() or not path.stat().st_size:
        yield Remains(None)
        return
    try:
        connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)
    except sqlite3.Error:
        yield Remains(None)
        return
    connection.row_factory = sqlite3.Row
    try:
        yield Remains(connection)
    finally:
        connection.close()
