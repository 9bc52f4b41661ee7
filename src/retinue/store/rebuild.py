"""A new database from what the logs and folders of a root tell.

Of each task the longest story counts that can be believed from its first event on,
be it the log's or that of the old database, if it can still be read. Nothing is
thrown away: the old files are kept beside the new.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from retinue.domain.ids import TaskId, is_id
from retinue.files import NotPlain, append, entries, read_plain, storage_failures, write_atomic
from retinue.store.database import DATABASE, Database
from retinue.store.records import SqliteRecords
from retinue.store.remains import Remains, read_remains
from retinue.store.retelling import Retelling
from retinue.store.story import Story, read_story, to_lines
from retinue.store.textfile import sync_folder
from retinue.store.verify import Problem, Verifier, problem

KEPT = "before-rebuild-"
LOG = "events.jsonl"
PARTS = ("", "-wal", "-shm")


@dataclass(frozen=True, kw_only=True)
class Report:
    rebuilt: list[str] = field(default_factory=list)  # tasks
    repaired: list[Problem] = field(default_factory=list)  # without any loss
    problems: list[Problem] = field(default_factory=list)  # what is lost, or still wrong
    kept: list[str] = field(default_factory=list)  # where the old files are


@dataclass(frozen=True, kw_only=True)
class _Chosen:
    task: TaskId
    story: Story
    remains: Remains  # of the old database, as far as it agrees


def rebuild(root: Path) -> Report:
    """The root has a database that tells what its logs tell. The caller holds the root's lock.

    Raises:
        StorageFailed: the disk refused; the old database is still in place.
    """
    report = Report()
    number = _next_number(root)
    fresh = root / f"{DATABASE}.new"
    for part in PARTS:
        fresh.with_name(fresh.name + part).unlink(missing_ok=True)
    with storage_failures(root), read_remains(root / DATABASE) as remains:
        chosen = [_choose(root, task, remains, report) for task in _tasks(root)]
        added = _fill(root, fresh, chosen, report)
        _name_unknown(remains, {each.task for each in chosen}, report)
        for each in chosen:
            lines = [*each.story.lines, *added.get(each.task, ())]
            _mend_log(root / "tasks" / each.task / LOG, b"".join(lines), number, report)
            _set_unknown_aside(root, each, number, report)
    with storage_failures(root):
        _swap(root, fresh, number, report)
    _verify(root, report)
    return report


def _tasks(root: Path) -> list[TaskId]:
    folders = [path for path in (root / "tasks").iterdir() if path.is_dir() and is_id(path.name)]
    return [TaskId(path.name) for path in folders if not path.is_symlink()]


def _choose(root: Path, task: TaskId, remains: Remains, report: Report) -> _Chosen:
    """The longest story, and that of the database where both are as long."""
    path = root / "tasks" / task / LOG
    log = read_story(task, _lines(path))
    known = read_story(task, to_lines(remains.events(task)))
    if len(known.lines) < len(log.lines) and not log.continues(known):
        message = "differs from the log, which goes on where it ends"
        report.problems.append(problem("database_differs", f"{root / DATABASE}: {task}", message))
        known, remains = Story(), Remains(None)
    story = max(known, log.whole(), key=lambda each: len(each.lines))
    where = f"{path}:{len(log.lines) + 1}"
    if known.lines and story is known and (known.lines != log.lines or log.damage):
        why = log.damage or ("ended early" if known.continues(log) else "was changed")
        report.repaired.append(problem("log_restored", where, f"{why}: restored"))
    elif log.damage == "line is torn":
        report.repaired.append(problem("log_cut", where, "its unfinished end was cut off"))
    elif log.damage:
        message = f"{log.damage}: this and all after it is lost"
        report.problems.append(problem("log_damaged", where, message))
    elif not story.lines and not _is_bare(path.parent):
        message = "the task cannot be told: it has no log"
        report.problems.append(problem("log_missing", str(path), message))
    return _Chosen(task=task, story=story, remains=remains)


def _is_bare(folder: Path) -> bool:
    """Whether nothing was ever recorded of the task: then there is nothing to tell."""
    agents = folder / "agents"
    return not (agents.is_dir() and any(agents.iterdir()))


def _fill(
    root: Path, fresh: Path, chosen: list[_Chosen], report: Report
) -> dict[TaskId, list[bytes]]:
    """The new database tells the stories; lines that were added to them, by task."""
    told = [each for each in chosen if each.story.events]
    told.sort(key=lambda each: each.story.events[0].ts)
    added: dict[TaskId, list[bytes]] = {}
    database = Database(fresh)
    try:
        for each in told:
            retelling = Retelling(database, each.remains, root / "tasks" / each.task)
            with database.transaction(durable=False):
                added[each.task] = to_lines(retelling.tell(each.story.events))
            report.rebuilt.append(each.task)
            report.problems.extend(retelling.problems)
    finally:
        database.close()
    return added


def _name_unknown(remains: Remains, known: set[TaskId], report: Report) -> None:
    names = {name.lower() for name in known}
    for row in remains.rows("last_seqs"):
        if str(row["task_id"]).lower() not in names:
            message = "the old database knows it, and its folder is gone"
            report.problems.append(problem("task_missing", str(row["task_id"]), message))


def _mend_log(path: Path, new: bytes, number: int, report: Report) -> None:
    """The log holds exactly this; whatever else stood in it is kept aside."""
    aside = path.with_name(f"{LOG}.{KEPT}{number}")
    if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
        path.rename(aside)
        report.kept.append(str(aside))
    old = b"".join(_lines(path))
    if new.startswith(old):
        if new != old:
            append(path, new[len(old) :])
        return
    os.link(path, aside)
    report.kept.append(str(aside))
    if new:
        write_atomic(path, new)
    else:
        path.unlink()


def _set_unknown_aside(root: Path, chosen: _Chosen, number: int, report: Report) -> None:
    """No folder stands where a later subagent of that name would take it for its own."""
    told = {each.event.subagent for each in chosen.story.events}
    agents = root / "tasks" / chosen.task / "agents"
    for folder in agents.iterdir() if agents.is_dir() else ():
        if is_id(folder.name) and folder.name not in told:
            aside = folder.with_name(f"{folder.name}.{KEPT}{number}")
            folder.rename(aside)
            report.kept.append(str(aside))
            message = f"no event tells of it; its files are in {aside}"
            report.problems.append(problem("subagent_lost", str(folder), message))


def _swap(root: Path, fresh: Path, number: int, report: Report) -> None:
    """The new database is in place. At no moment does an old WAL lie beside it."""
    for part in PARTS:
        old = root / (DATABASE + part)
        if old.exists():
            aside = root / f"{DATABASE}.{KEPT}{number}{part}"
            os.link(old, aside)
            report.kept.append(str(aside))
    sync_folder(root)
    for part in PARTS[1:]:
        (root / (DATABASE + part)).unlink(missing_ok=True)
    fresh.replace(root / DATABASE)
    sync_folder(root)


def _verify(root: Path, report: Report) -> None:
    database = Database(root / DATABASE)
    try:
        records = SqliteRecords(database)
        verifier = Verifier(root, records)
        for task in report.rebuilt:
            report.problems.extend(verifier.task(records.task(TaskId(task))))
    finally:
        database.close()


def _next_number(root: Path) -> int:
    """One that no earlier rebuild has used."""
    tasks = entries(root / "tasks")
    folders = [root, *tasks, *(task / "agents" for task in tasks)]
    names = [path.name for folder in folders for path in entries(folder)]
    numbers = [name.partition(f".{KEPT}")[2].partition("-")[0] for name in names]
    return 1 + max((int(each) for each in numbers if each.isdigit()), default=0)


def _lines(path: Path) -> list[bytes]:
    """The lines of a log, each with its end; none when there is no log, or something else."""
    try:
        return read_plain(path).splitlines(keepends=True)
    except (FileNotFoundError, NotPlain):
        return []
