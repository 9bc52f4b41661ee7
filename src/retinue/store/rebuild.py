"""Rebuild of the database from the logs and folders of a root.

For each task, the longest valid history is used: that of the log, or that of the old database if it
can still be read. Old files are kept beside the new ones.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from retinue.core import events
from retinue.core.errors import IllegalTransition
from retinue.core.events import Event, Recorded
from retinue.core.ids import TaskId, is_id
from retinue.core.lifecycle import Standing, fold
from retinue.core.plan import RunOutcome
from retinue.files import (
    NotPlainFile,
    append,
    list_entries,
    read_plain,
    storage_failures,
    write_atomic,
)
from retinue.formats.event_json import event_from_json, event_to_line
from retinue.store.database import DATABASE, Database
from retinue.store.reads import Records
from retinue.store.replay import OldDatabase, TaskReplay, open_old_database
from retinue.store.task_yaml import sync_folder
from retinue.store.verify import Problem, Verifier, make_problem

# These are never the last event of a transaction. A log that ends with one was cut inside it.
NEVER_LAST = frozenset(
    {
        events.SUBAGENT_STARTED,
        events.COMPLETED,
        events.FAILED,
        events.BLOCKED,
        events.CANCELLED,
        events.RUN_ENDED,
    }
)


@dataclass(frozen=True, kw_only=True)
class EventHistory:
    """Valid events of one task from its first on, and what is wrong with the line after them."""

    lines: tuple[bytes, ...] = ()
    events: tuple[Recorded, ...] = ()
    damage: str = ""

    def is_continuation_of(self, other: EventHistory) -> bool:
        """Return whether this history begins with all lines of the other."""
        return self.lines[: len(other.lines)] == other.lines

    def drop_unfinished(self) -> EventHistory:
        """Return the history without an incomplete transaction at its end."""
        end = len(self.events)
        while end and _is_never_last(self.events[end - 1].event):
            end -= 1
        return EventHistory(lines=self.lines[:end], events=self.events[:end], damage=self.damage)


class _LineChecker:
    """Checker of a log, line by line, against the events before."""

    def __init__(self, task: TaskId) -> None:
        self._task = task
        self._run = ""
        self._known: dict[str, tuple[Recorded, Standing]] = {}

    def check_line(self, seq: int, line: bytes) -> Recorded:
        """Return the event of a line.

        Raises:
            ValueError: what is wrong with the line.
        """
        recorded = _parse_line(line)
        if recorded.seq != seq:
            raise ValueError(f"line holds event {recorded.seq} instead of {seq}")
        self._run = self._run or recorded.run
        if (recorded.task, recorded.run) != (self._task, self._run):
            raise ValueError("line belongs to another task or run")
        if seq == 1 and recorded.event.type != events.TASK_CREATED:
            raise ValueError("the first event does not create the task")
        self._follow(recorded)
        return recorded

    def _follow(self, recorded: Recorded) -> None:
        event = recorded.event
        if event.type == events.RUN_ENDED and event.payload.get("outcome") not in set(RunOutcome):
            raise ValueError("the run ended with an unknown outcome")
        if event.subagent is None:
            return
        if event.type == events.SUBAGENT_CREATED:
            if event.subagent in self._known or recorded.step_idx is None:
                raise ValueError(f"{event.subagent} was created before, or has no step")
            self._known[event.subagent] = recorded, Standing()
            return
        if event.subagent not in self._known:
            raise ValueError(f"{event.subagent} was never created")
        created, standing = self._known[event.subagent]
        same = (created.step_idx, created.contract_sha256)
        if (recorded.step_idx, recorded.contract_sha256) != same:
            raise ValueError(f"{event.subagent} has another step or contract than before")
        try:
            self._known[event.subagent] = created, fold(standing, event, recorded.seq)
        except (IllegalTransition, KeyError) as error:
            raise ValueError(f"the event does not fit: {error}") from None


def read_history(task: TaskId, lines: Iterable[bytes]) -> EventHistory:
    """Return the events of these lines, up to the first invalid one."""
    checker = _LineChecker(task)
    kept: list[bytes] = []
    valid: list[Recorded] = []
    for number, line in enumerate(lines, start=1):
        try:
            valid.append(checker.check_line(number, line))
        except ValueError as error:
            return EventHistory(lines=tuple(kept), events=tuple(valid), damage=str(error))
        kept.append(line)
    return EventHistory(lines=tuple(kept), events=tuple(valid))


def to_lines(recorded: Sequence[Recorded]) -> list[bytes]:
    return [event_to_line(each) for each in recorded]


def _parse_line(line: bytes) -> Recorded:
    if not line.endswith(b"\n"):
        raise ValueError("line is torn")
    if b"\0" in line:
        raise ValueError("line holds NUL bytes")
    try:
        recorded = event_from_json(json.loads(line))
        sound = event_to_line(recorded) == line and isinstance(recorded.event.attempt, int)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise ValueError("line is not an event") from None
    if not sound:
        raise ValueError("line is not an event as retinue writes them")
    return recorded


def _is_never_last(event: Event) -> bool:
    if event.type == events.SUBAGENT_ATTEMPT:
        return event.payload.get("next") != "retry"
    return event.type in NEVER_LAST


ASIDE = "before-rebuild-"
LOG = "events.jsonl"
PARTS = ("", "-wal", "-shm")


@dataclass(frozen=True, kw_only=True)
class RebuildReport:
    rebuilt: list[str] = field(default_factory=list)  # tasks
    repaired: list[Problem] = field(default_factory=list)  # repaired without loss
    problems: list[Problem] = field(default_factory=list)  # losses, and what is still wrong
    kept: list[str] = field(default_factory=list)  # paths of the old files


@dataclass(frozen=True, kw_only=True)
class _ChosenHistory:
    task: TaskId
    history: EventHistory
    old: OldDatabase  # empty if it contradicts the history


def rebuild(root: Path) -> RebuildReport:
    """Build a new database from the logs of a root. The caller holds the root's lock.

    Raises:
        StorageFailed: the disk refused; the old database is still in place.
    """
    report = RebuildReport()
    number = _choose_number(root)
    fresh = root / f"{DATABASE}.new"
    for part in PARTS:
        fresh.with_name(fresh.name + part).unlink(missing_ok=True)
    with storage_failures(root), open_old_database(root / DATABASE) as old:
        chosen = [_choose(root, task, old, report) for task in _list_tasks(root)]
        # Build beside the old database; a crash before `_swap` leaves the old one in use.
        added = _fill(root, fresh, chosen, report)
        _report_unknown_tasks(old, {each.task for each in chosen}, report)
        for each in chosen:
            lines = [*each.history.lines, *added.get(each.task, ())]
            _repair_log(root / "tasks" / each.task / LOG, b"".join(lines), number, report)
            _rename_unknown_folders(root, each, number, report)
    with storage_failures(root):
        _swap(root, fresh, number, report)
    _verify(root, report)
    return report


def _list_tasks(root: Path) -> list[TaskId]:
    folders = [path for path in (root / "tasks").iterdir() if path.is_dir() and is_id(path.name)]
    return [TaskId(path.name) for path in folders if not path.is_symlink()]


def _choose(root: Path, task: TaskId, old: OldDatabase, report: RebuildReport) -> _ChosenHistory:
    """Return the longest valid history of a task; the database wins if both are equally long."""
    path = root / "tasks" / task / LOG
    log = read_history(task, _read_lines(path))
    known = read_history(task, to_lines(old.read_events(task)))
    # The log is longer but differs: rows of the old database would not fit its events.
    if len(known.lines) < len(log.lines) and not log.is_continuation_of(known):
        message = "differs from the log, which has more events"
        report.problems.append(
            make_problem("database_differs", f"{root / DATABASE}: {task}", message)
        )
        known = EventHistory()
        old = OldDatabase(None)
    history = max(known, log.drop_unfinished(), key=lambda each: len(each.lines))
    where = f"{path}:{len(log.lines) + 1}"
    if known.lines and history is known and (known.lines != log.lines or log.damage):
        why = log.damage or ("ended early" if known.is_continuation_of(log) else "was changed")
        report.repaired.append(make_problem("log_restored", where, f"{why}: restored"))
    elif log.damage == "line is torn":
        report.repaired.append(make_problem("log_cut", where, "its unfinished end was cut off"))
    elif log.damage:
        message = f"{log.damage}: this and all after it is lost"
        report.problems.append(make_problem("log_damaged", where, message))
    elif not history.lines and not _is_unrecorded(path.parent):
        message = "the task cannot be rebuilt: it has no log"
        report.problems.append(make_problem("log_missing", str(path), message))
    return _ChosenHistory(task=task, history=history, old=old)


def _is_unrecorded(folder: Path) -> bool:
    """Return whether nothing was ever recorded of the task, so that nothing is lost."""
    agents = folder / "agents"
    return not (agents.is_dir() and any(agents.iterdir()))


def _fill(
    root: Path, fresh: Path, chosen: list[_ChosenHistory], report: RebuildReport
) -> dict[TaskId, list[bytes]]:
    """Replay the histories into the new database; return the lines added to each log."""
    replayed = [each for each in chosen if each.history.events]
    replayed.sort(key=lambda each: each.history.events[0].ts)
    added: dict[TaskId, list[bytes]] = {}
    database = Database(fresh)
    try:
        for each in replayed:
            replay = TaskReplay(database, each.old, root / "tasks" / each.task)
            # No fsync per task: the database is used only after it is complete.
            with database.transaction(durable=False):
                added[each.task] = to_lines(replay.replay_events(each.history.events))
            report.rebuilt.append(each.task)
            report.problems.extend(replay.problems)
    finally:
        database.close()
    return added


def _report_unknown_tasks(old: OldDatabase, known: set[TaskId], report: RebuildReport) -> None:
    """Report tasks that only the old database knows."""
    names = {name.lower() for name in known}
    for row in old.iter_rows("last_seqs"):
        if str(row["task_id"]).lower() not in names:
            message = "the old database contains it, but its folder is gone"
            report.problems.append(make_problem("task_missing", str(row["task_id"]), message))


def _repair_log(path: Path, new: bytes, number: int, report: RebuildReport) -> None:
    """Write this content to the log; keep the old content aside if it differs."""
    aside = path.with_name(f"{LOG}.{ASIDE}{number}")
    if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
        path.rename(aside)
        report.kept.append(str(aside))
    old = b"".join(_read_lines(path))
    if new.startswith(old):
        if new != old:
            append(path, new[len(old) :])
        return
    # A second name before the replacement: the old content exists under one name at every moment.
    os.link(path, aside)
    report.kept.append(str(aside))
    if new:
        write_atomic(path, new)
    else:
        path.unlink()


def _rename_unknown_folders(
    root: Path, chosen: _ChosenHistory, number: int, report: RebuildReport
) -> None:
    """Rename folders of unknown subagents, so that a later one of that name does not use them."""
    known = {each.event.subagent for each in chosen.history.events}
    agents = root / "tasks" / chosen.task / "agents"
    for folder in agents.iterdir() if agents.is_dir() else ():
        if is_id(folder.name) and folder.name not in known:
            aside = folder.with_name(f"{folder.name}.{ASIDE}{number}")
            folder.rename(aside)
            report.kept.append(str(aside))
            message = f"no event mentions it; its files are in {aside}"
            report.problems.append(make_problem("subagent_lost", str(folder), message))


def _swap(root: Path, fresh: Path, number: int, report: RebuildReport) -> None:
    """Put the new database in place; an old WAL must never lie beside it."""
    for part in PARTS:
        old = root / (DATABASE + part)
        if old.exists():
            aside = root / f"{DATABASE}.{ASIDE}{number}{part}"
            os.link(old, aside)
            report.kept.append(str(aside))
    sync_folder(root)
    # SQLite would apply an old WAL to the new database and destroy it.
    for part in PARTS[1:]:
        (root / (DATABASE + part)).unlink(missing_ok=True)
    fresh.replace(root / DATABASE)
    sync_folder(root)


def _verify(root: Path, report: RebuildReport) -> None:
    database = Database(root / DATABASE)
    try:
        records = Records(database)
        verifier = Verifier(root, records)
        for task in report.rebuilt:
            report.problems.extend(verifier.check_task(records.get_task(TaskId(task))))
    finally:
        database.close()


def _choose_number(root: Path) -> int:
    """Return a number that no earlier rebuild has used."""
    tasks = list_entries(root / "tasks")
    folders = [root, *tasks, *(task / "agents" for task in tasks)]
    names = [path.name for folder in folders for path in list_entries(folder)]
    numbers = [name.partition(f".{ASIDE}")[2].partition("-")[0] for name in names]
    return 1 + max((int(each) for each in numbers if each.isdigit()), default=0)


def _read_lines(path: Path) -> list[bytes]:
    """Return the lines of a log with their ends; none if it is missing or not a plain file."""
    try:
        return read_plain(path).splitlines(keepends=True)
    except (FileNotFoundError, NotPlainFile):
        return []
