"""What a crash left half done in the folders of tasks, put right when a root is opened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from retinue.domain.errors import StorageFailed
from retinue.files import storage_failures
from retinue.store.export import Exporter, log_ahead
from retinue.store.records import SqliteRecords

OF_A_NEW_TASK = {"task.yaml", ".task.yaml.new", "agents"}


def settle(
    tasks: Path, records: SqliteRecords, exporter: Exporter, complain: Callable[[str], None]
) -> None:
    """Every log tells what the database knows, and no folder is left of a task that never was.

    Raises:
        IntegrityBroken: a log knows more than the database. Nothing was changed in it.
    """
    known = records.last_seqs()
    names = {name.lower() for name in known}
    unknown = [path for path in tasks.iterdir() if path.name.lower() not in names]
    for folder in unknown:
        log = folder / "events.jsonl"
        if log.is_file() and log.stat().st_size:
            raise log_ahead(f"{log} belongs to a task that the database does not know")
    exporter.catch_up_all(known)
    for folder in filter(Path.is_dir, unknown):
        try:
            _discard(folder, complain)
        except StorageFailed as error:
            complain(error.message)


def _discard(folder: Path, complain: Callable[[str], None]) -> None:
    """Gone is what was made for a task before it was recorded; anything else is left alone."""
    with storage_failures(folder):
        agents = folder / "agents"
        left = {path.name for path in folder.iterdir()}
        if not left <= OF_A_NEW_TASK or (agents.is_dir() and any(agents.iterdir())):
            complain(f"{folder} belongs to no task and was left alone")
            return
        for name in left - {"agents"}:
            (folder / name).unlink()
        if agents.is_dir():
            agents.rmdir()
        folder.rmdir()
