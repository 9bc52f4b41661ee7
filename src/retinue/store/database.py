"""The SQLite file: one connection, named queries, transactions that hold or vanish."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from retinue.domain.errors import IntegrityBroken, StorageFailed

DATABASE = "retinue.db"
SCHEMA_VERSION = 1
BUSY_SECONDS = 5.0  # for which another program is waited for that holds the file


def load_queries() -> dict[str, str]:
    text = Path(__file__).with_name("queries.sql").read_text()
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], (part.strip() for part in parts[1::2]), strict=True))


class Database:
    """Opened for writing by exactly one process, which holds the root's lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._queries = load_queries()
        self._synchronous = ""
        self._undone = False  # a commit failed, and what it had written may still lie in the WAL
        self._connection = self._open()
        self._inode = path.stat().st_ino

    def close(self) -> None:
        self._connection.close()

    @property
    def is_writing(self) -> bool:
        """Whether what is read now may never be committed."""
        return self._connection.in_transaction

    @contextmanager
    def transaction(self, *, durable: bool) -> Iterator[None]:
        """All that is written inside is kept, or none of it.

        Durable ones survive the loss of power, others the loss of any process.

        Raises:
            StorageFailed: nothing was written.
        """
        level = "FULL" if durable else "NORMAL"
        try:
            if self._undone:
                self._bury()
            if self._synchronous != level:
                self._connection.execute(f"PRAGMA synchronous = {level}")
                self._synchronous = level
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._commit()
            except BaseException:
                self._roll_back()
                raise
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def _commit(self) -> None:
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error:
            self._undone = True
            self._roll_back()
            with suppress(sqlite3.Error):  # else before the next transaction
                self._bury()
            raise

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _bury(self) -> None:
        """Frames of a failed commit, which recovery would take for committed, are overwritten."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            self._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            self._connection.execute("COMMIT")
        except sqlite3.Error:
            self._roll_back()
            raise
        self._undone = False

    def require_in_place(self) -> None:
        """Raises:
        IntegrityBroken: the open file is not what lies in the root under its name any more.
        """
        try:
            found = self.path.stat()
        except OSError:
            found = None
        if not self.path.parent.exists():
            raise IntegrityBroken(
                f"{self.path.parent} was moved or removed while it was in use",
                code="root_moved",
                hint="repeat it where the root is now",
            )
        if found is None or found.st_ino != self._inode or not found.st_size:
            raise IntegrityBroken(
                f"{self.path} was removed, emptied or replaced while it was in use",
                code="database_missing",
                hint="logs and workspaces are intact; 'retinue verify --rebuild' makes a new "
                "database from them",
            )

    def run(self, query: str, **values: Any) -> int:
        """The number of rows that a named statement changed."""
        return self._connection.execute(self._queries[query], values).rowcount

    def run_all(self, query: str, values: Iterable[Mapping[str, Any]]) -> None:
        """The named statement has run with each of these."""
        self._connection.executemany(self._queries[query], values)

    def rows(self, query: str, **values: Any) -> list[sqlite3.Row]:
        try:
            return self._connection.execute(self._queries[query], values).fetchall()
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def one(self, query: str, **values: Any) -> sqlite3.Row | None:
        rows = self.rows(query, **values)
        return rows[0] if rows else None

    def damage(self) -> str | None:
        """What SQLite itself finds wrong with the file, or None."""
        try:
            (answer,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.Error as error:
            return str(error)
        return None if answer == "ok" else str(answer)

    def _open(self) -> sqlite3.Connection:
        try:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            connection = sqlite3.connect(self.path, isolation_level=None, timeout=BUSY_SECONDS)
        except (OSError, sqlite3.Error) as error:
            raise StorageFailed(f"cannot open {self.path}: {error}") from error
        connection.row_factory = sqlite3.Row
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA temp_store = MEMORY")  # writing needs no further descriptor
            self._migrate(connection)
        except sqlite3.DatabaseError as error:
            connection.close()
            raise self._failure(error) from error
        return connection

    def _migrate(self, connection: sqlite3.Connection) -> None:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            schema = Path(__file__).with_name("schema.sql").read_text()
            connection.executescript(
                f"BEGIN IMMEDIATE;{schema}PRAGMA user_version = {SCHEMA_VERSION};COMMIT;"
            )
        elif version != SCHEMA_VERSION:
            raise IntegrityBroken(
                f"{self.path} has schema {version}, this version of retinue knows {SCHEMA_VERSION}",
                code="schema_version",
                hint="use the retinue that wrote it, or a newer one",
            )

    def _failure(self, error: sqlite3.Error) -> StorageFailed | IntegrityBroken:
        name = getattr(error, "sqlite_errorname", "") or type(error).__name__
        if name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
            return IntegrityBroken(
                f"{self.path} is not a readable database ({name}: {error})",
                code="database_damaged",
                hint="logs and workspaces are untouched; 'retinue verify --rebuild' makes a new "
                "database from them and keeps the old file",
            )
        code = "disk_full" if name == "SQLITE_FULL" else "storage_failed"
        remedy = "free space or repair the disk"
        if name.startswith("SQLITE_BUSY"):
            remedy = "another program holds it: let it finish"
        return StorageFailed(
            f"cannot write {self.path} ({name}: {error})",
            code=code,
            hint=f"{remedy}, then repeat; nothing was changed",
        )
