"""Database of a node: the epoch and place of its lease, and each accepted order.

An order stays until its end is recorded by the steward.
"""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from retinue.clock import read_boot_id
from retinue.core.errors import StorageFailed

_SCHEMA = """
CREATE TABLE IF NOT EXISTS lease (only INTEGER PRIMARY KEY CHECK (only = 1), epoch TEXT);
CREATE TABLE IF NOT EXISTS orders (
    key TEXT PRIMARY KEY,
    epoch TEXT NOT NULL,
    revision INTEGER NOT NULL,
    secret BLOB NOT NULL,
    head BLOB NOT NULL,
    identity TEXT NOT NULL DEFAULT '',
    released INTEGER NOT NULL DEFAULT 0,
    ended BLOB
) WITHOUT ROWID;
"""


@dataclass(frozen=True, kw_only=True)
class AcceptedOrder:
    key: str
    epoch: str
    revision: int
    secret: bytes
    head: bytes  # the order without its files
    identity: str = ""  # of its process, as JSON
    released: bool = False
    ended: bytes | None = None  # the sealed end, until the steward has taken it


class NodeDatabase:
    def __init__(self, path: Path) -> None:
        """Raises:
        StorageFailed: the file cannot be used.
        """
        self._path = path
        try:
            # Security: orders hold secrets, and SQLite makes files that all may read.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            for suffix in ("", "-wal", "-shm"):
                if os.path.exists(f"{path}{suffix}"):
                    os.chmod(f"{path}{suffix}", 0o600)
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode = WAL")
            # A power loss ends the children as well, so their entries may be lost with it.
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.executescript(_SCHEMA)
            if "place" not in [row[1] for row in self._db.execute("PRAGMA table_info(lease)")]:
                self._db.execute("ALTER TABLE lease ADD COLUMN place TEXT NOT NULL DEFAULT ''")
        except (OSError, sqlite3.Error) as error:
            raise StorageFailed(f"cannot use {path}: {error}") from error

    def close(self) -> None:
        self._db.close()

    def read_epoch(self) -> str:
        """Return the epoch of the last lease; empty if there is none."""
        row = self._db.execute("SELECT epoch FROM lease").fetchone()
        return str(row[0]) if row else ""

    def write_epoch(self, epoch: str) -> None:
        words = "INSERT OR REPLACE INTO lease (only, epoch, place) VALUES (1, ?, ?)"
        self._run(words, epoch, self._describe_place())

    def is_epoch_of_this_place(self) -> bool:
        """Return whether the children of the last epoch are here, if there are any.

        They are not after a reboot, in another container, or if the folder is a copy, whose
        original may be serving.
        """
        row = self._db.execute("SELECT place FROM lease").fetchone()
        # A database of an earlier version does not say where it was.
        return row is not None and row[0] in ("", self._describe_place())

    def _describe_place(self) -> str:
        status = os.stat(self._path)
        namespace = os.stat("/proc/self/ns/pid").st_ino
        return f"{read_boot_id()} {namespace} {status.st_dev} {status.st_ino}"

    def accept(self, order: AcceptedOrder) -> None:
        self._run(
            "INSERT INTO orders (key, epoch, revision, secret, head) VALUES (?, ?, ?, ?, ?)",
            *(order.key, order.epoch, order.revision, order.secret, order.head),
        )

    def note_process(self, key: str, identity: str) -> None:
        self._run("UPDATE orders SET identity = ? WHERE key = ?", identity, key)

    def note_released(self, key: str) -> None:
        self._run("UPDATE orders SET released = 1 WHERE key = ?", key)

    def note_revision(self, key: str, revision: int) -> None:
        self._run("UPDATE orders SET revision = ? WHERE key = ?", revision, key)

    def note_ended(self, key: str, ended: bytes) -> None:
        self._run("UPDATE orders SET ended = ? WHERE key = ?", ended, key)

    def forget(self, key: str) -> None:
        self._run("DELETE FROM orders WHERE key = ?", key)

    def find(self, key: str) -> AcceptedOrder | None:
        return next(iter(self._list("WHERE key = ?", key)), None)

    def list_orders(self) -> list[AcceptedOrder]:
        return self._list("ORDER BY key")

    def _list(self, where: str, *values: object) -> list[AcceptedOrder]:
        columns = "key, epoch, revision, secret, head, identity, released, ended"
        rows = self._db.execute(f"SELECT {columns} FROM orders {where}", values).fetchall()
        return [
            AcceptedOrder(
                key=row[0],
                epoch=row[1],
                revision=row[2],
                secret=row[3],
                head=row[4],
                identity=row[5],
                released=bool(row[6]),
                ended=row[7],
            )
            for row in rows
        ]

    def _run(self, statement: str, *values: object) -> None:
        try:
            self._db.execute(statement, values)
        except sqlite3.Error as error:
            raise StorageFailed(f"the node cannot write its database: {error}") from error
