"""The SQLite database: one connection, named queries, atomic transactions."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from retinue.core.errors import IntegrityBroken, StorageFailed

DATABASE = "retinue.db"
SCHEMA_VERSION = 4
# Version -> the statements that upgrade a database of the version before.
UPGRADES = {
    2: "ALTER TABLE attempts ADD COLUMN place TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE sub_agents ADD COLUMN node_losses INTEGER NOT NULL DEFAULT 0;",
    3: """
    CREATE TABLE deleted_tasks (
        task_id TEXT NOT NULL COLLATE NOCASE,
        title TEXT NOT NULL,
        created_at TEXT NOT NULL,
        deleted_at TEXT NOT NULL,
        by TEXT NOT NULL,
        subagents INTEGER NOT NULL,
        events INTEGER NOT NULL,
        input_tokens INTEGER NOT NULL,
        output_tokens INTEGER NOT NULL,
        estimated_cost REAL NOT NULL,
        purging INTEGER NOT NULL,
        PRIMARY KEY (task_id, deleted_at)
    );
    CREATE TRIGGER deletions_are_kept BEFORE DELETE ON deleted_tasks
    BEGIN
        SELECT RAISE(ABORT, 'the record of a deletion is never deleted');
    END;
    DROP TRIGGER subagents_are_kept;
    CREATE TRIGGER subagents_are_kept BEFORE DELETE ON sub_agents
    WHEN NOT EXISTS (SELECT 1 FROM deleted_tasks d WHERE d.task_id = OLD.task_id AND d.purging)
    BEGIN
        SELECT RAISE(ABORT, 'a subagent is never deleted');
    END;
    DROP TRIGGER events_are_not_deleted;
    CREATE TRIGGER events_are_not_deleted BEFORE DELETE ON events
    WHEN NOT EXISTS (SELECT 1 FROM deleted_tasks d WHERE d.task_id = OLD.task_id AND d.purging)
    BEGIN
        SELECT RAISE(ABORT, 'an event is never deleted');
    END;
    """,
    4: "ALTER TABLE ledger ADD COLUMN seconds REAL;",
}
BUSY_SECONDS = 5.0  # how long to wait for another program that locks the file


def load_queries() -> dict[str, str]:
    text = Path(__file__).with_name("queries.sql").read_text()
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], (part.strip() for part in parts[1::2]), strict=True))


class Database:
    """A database that exactly one process writes: the one that holds the root's lock."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        """Open the database; a `read_only` one may come from an untrusted source."""
        self.path = path
        self._queries = load_queries()
        self._synchronous = ""
        self._undone = False  # whether frames of a failed commit may still be in the WAL
        self._connection = self._open_to_read() if read_only else self._open()
        self._inode = path.stat().st_ino

    def close(self) -> None:
        self._connection.close()

    @property
    def is_writing(self) -> bool:
        """Return whether a transaction is open, so that what is read may never be committed."""
        return self._connection.in_transaction

    @contextmanager
    def transaction(self, *, durable: bool) -> Iterator[None]:
        """Commit everything that is written inside, or nothing.

        A durable transaction survives a power loss, any other the death of the process.

        Raises:
            StorageFailed: nothing was written.
        """
        level = "FULL" if durable else "NORMAL"
        try:
            if self._undone:
                self._wipe_failed_commit()
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
            raise self._to_error(error) from error

    def _commit(self) -> None:
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error:
            self._undone = True
            self._roll_back()
            with suppress(sqlite3.Error):  # if this fails, the next transaction tries again
                self._wipe_failed_commit()
            raise

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _wipe_failed_commit(self) -> None:
        """Overwrite the frames of a failed commit, which a recovery would take for committed."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            self._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            self._connection.execute("COMMIT")
        except sqlite3.Error:
            self._roll_back()
            raise
        self._undone = False

    def require_in_place(self) -> None:
        """Require that the open file is still the one in the root.

        Raises:
            IntegrityBroken: it was moved, removed, emptied or replaced.
        """
        try:
            found = self.path.stat()
        except OSError:
            found = None
        if not self.path.parent.exists():
            raise IntegrityBroken(
                f"{self.path.parent} was moved or removed while it was in use",
                code="root_moved",
                hint="repeat the command where the root is now",
            )
        if found is None or found.st_ino != self._inode or not found.st_size:
            raise IntegrityBroken(
                f"{self.path} was removed, emptied or replaced while it was in use",
                code="database_missing",
                hint="logs and workspaces are intact; 'retinue verify --rebuild' makes a new "
                "database from them",
            )

    def run(self, query: str, **values: Any) -> int:
        """Run a named statement and return the number of changed rows."""
        return self._connection.execute(self._queries[query], values).rowcount

    def run_all(self, query: str, values: Iterable[Mapping[str, Any]]) -> None:
        """Run a named statement with each of these values."""
        self._connection.executemany(self._queries[query], values)

    def fetch_rows(self, query: str, **values: Any) -> list[sqlite3.Row]:
        try:
            return self._connection.execute(self._queries[query], values).fetchall()
        except sqlite3.Error as error:
            raise self._to_error(error) from error

    def fetch_one(self, query: str, **values: Any) -> sqlite3.Row | None:
        rows = self.fetch_rows(query, **values)
        return rows[0] if rows else None

    def forget_processes(self) -> None:
        """Clear all process ids: the database was copied from another root.

        Raises:
            StorageFailed: nothing was written.
        """
        with self.transaction(durable=True):
            self.run("forget_processes")

    def find_damage(self) -> str | None:
        """Return what SQLite finds wrong with the file; None if it is sound."""
        try:
            (answer,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.Error as error:
            return str(error)
        return None if answer == "ok" else str(answer)

    def _open(self) -> sqlite3.Connection:
        try:
            # Create the file first: SQLite would create it with the permissions of the umask.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            connection = sqlite3.connect(self.path, isolation_level=None, timeout=BUSY_SECONDS)
        except (OSError, sqlite3.Error) as error:
            raise StorageFailed(f"cannot open {self.path}: {error}") from error
        connection.row_factory = sqlite3.Row
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA foreign_keys = ON")
            # In memory: a write must not fail because no file descriptor is left.
            connection.execute("PRAGMA temp_store = MEMORY")
            self._migrate(connection)
        except sqlite3.DatabaseError as error:
            connection.close()
            raise self._to_error(error) from error
        return connection

    def _open_to_read(self) -> sqlite3.Connection:
        """Open an untrusted file: functions in its views and triggers are not executed."""
        try:
            log = self.path.with_name(self.path.name + "-wal")
            # Without a WAL there is nothing to merge, and SQLite need not create files beside it.
            how = "mode=ro" if log.exists() else "mode=ro&immutable=1"
            address = f"{self.path.absolute().as_uri()}?{how}"
            connection = sqlite3.connect(
                address, uri=True, isolation_level=None, timeout=BUSY_SECONDS
            )
        except sqlite3.Error as error:
            raise StorageFailed(f"cannot open {self.path}: {error}") from error
        connection.row_factory = sqlite3.Row
        try:
            for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "query_only = ON"):
                connection.execute(f"PRAGMA {pragma}")
            self._require_version(connection)
        except (sqlite3.DatabaseError, IntegrityBroken) as error:
            connection.close()
            if isinstance(error, IntegrityBroken):
                raise
            raise self._to_error(error) from error
        return connection

    def _migrate(self, connection: sqlite3.Connection) -> None:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            schema = Path(__file__).with_name("schema.sql").read_text()
            # Schema and version in one transaction: a crash leaves version 0, and the next start
            # repeats it.
            connection.executescript(
                f"BEGIN IMMEDIATE;{schema}PRAGMA user_version = {SCHEMA_VERSION};COMMIT;"
            )
            return
        self._require_version(connection)
        for step in range(version + 1, SCHEMA_VERSION + 1):
            connection.executescript(
                f"BEGIN IMMEDIATE;{UPGRADES[step]}PRAGMA user_version = {step};COMMIT;"
            )

    def _require_version(self, connection: sqlite3.Connection) -> None:
        """Require a schema version that this program can read.

        Raises:
            IntegrityBroken: a newer version of retinue wrote the file.
        """
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if not 1 <= version <= SCHEMA_VERSION:
            raise IntegrityBroken(
                f"{self.path} has schema {version}, this version of retinue knows {SCHEMA_VERSION}",
                code="schema_version",
                hint="use the retinue that wrote it, or a newer one",
            )

    def _to_error(self, error: sqlite3.Error) -> StorageFailed | IntegrityBroken:
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
            remedy = "another program locks it: wait until it has finished"
        return StorageFailed(
            f"cannot write {self.path} ({name}: {error})",
            code=code,
            hint=f"{remedy}, then repeat; nothing was changed",
        )
