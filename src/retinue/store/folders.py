"""The folders of tasks, and everything in them that is told from the database."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from operator import itemgetter
from pathlib import Path

from retinue.domain import event as events
from retinue.domain.errors import BadInput, IntegrityBroken, StorageFailed
from retinue.domain.event import Recorded
from retinue.domain.ids import TaskId
from retinue.domain.lifecycle import ROSTER_STATES
from retinue.domain.newest import Newest
from retinue.domain.policy import NewConfig, TaskConfig
from retinue.domain.subagent import Counts, Gate, Subagent, Task
from retinue.files import make_folder, read_plain, storage_failures, write_atomic
from retinue.store.export import BATCH, Exporter
from retinue.store.records import SqliteRecords
from retinue.store.roster import RosterEntry
from retinue.store.taskfile import TaskFile
from retinue.wire.event import to_line
from retinue.wire.views import metrics_to_text, task_status_to_text

TASK_FILE, STATUS_FILE = "task.yaml", "status.json"
MAX_CACHED = 256
MOST_GATES = 50  # shown in task.yaml; gate list has them all
ROOM_BYTES = 16 * 1024  # what a subagent's own records may need before it has done anything
AMPLE_BYTES, AMPLE_FILES = 64 * 1024 * 1024, 10_000  # what a second of spawning does not use up
TRY_AGAIN_SECONDS = 1.0  # by writing: not every disk tells what it will refuse
BEGINNINGS = frozenset({events.SUBAGENT_CREATED, events.SUBAGENT_STARTED, events.STARTED})
BEGINNING_SECONDS = 0.03  # a short command has ended by then
SHARE_OF_TIME = 0.02  # what projections may take, however large they grow
LONGEST_SECONDS = 10.0  # by which they follow, though the disk once stood still
AHEAD = 5  # writings whose share is still to come: a few changes hardly wait for them
AHEAD_SECONDS = 0.05  # in which whoever spawns one after the other is not held up


class TaskFolders:
    """Implements the part of `Tasks` that is about task.yaml."""

    def __init__(self, tasks: Path, exporter: Exporter) -> None:
        self._tasks = tasks
        self._exporter = exporter
        self._files = Newest[TaskId, TaskFile](MAX_CACHED)
        self._tried = -TRY_AGAIN_SECONDS  # when something was last written on trial

    def folder(self, task: TaskId) -> Path:
        return self._tasks / task

    def create(self, task: Task, config: NewConfig) -> None:
        folder = self.folder(task.id)
        try:
            with storage_failures(folder):
                folder.mkdir(mode=0o700)
        except StorageFailed as error:
            if isinstance(error.__cause__, FileExistsError):
                raise BadInput(
                    f"task {task.id} exists already",
                    code="duplicate_id",
                    hint="take another id, or none: then one is made",
                ) from None
            raise
        try:
            self.file(task.id).create(task, config)
            make_folder(folder / "agents")
        except BaseException:
            self.discard(task.id)
            raise

    def discard(self, task: TaskId) -> None:
        folder = self.folder(task)
        self._files.pop(task, None)
        with storage_failures(folder):
            (folder / TASK_FILE).unlink(missing_ok=True)
            (folder / "events.jsonl").unlink(missing_ok=True)
            for path in (folder / "agents", folder):
                if path.is_dir():
                    path.rmdir()

    def require_writable(self, task: TaskId) -> None:
        self._exporter.require_writable(task)
        agents = f"{self.folder(task)}/agents"
        now = time.monotonic()
        if now - self._tried < TRY_AGAIN_SECONDS and _is_ample(agents):
            return
        probe = f"{agents}/.room"
        write_atomic(probe, bytes(ROOM_BYTES))
        with storage_failures(probe):
            os.unlink(probe)
        self._tried = now

    def has_workspace(self, task: TaskId, subagent: str) -> bool:
        workspace = self.folder(task) / "agents" / subagent / "workspace"
        return workspace.is_dir() and not workspace.is_symlink()

    def catch_up(self, task: TaskId) -> None:
        """The task's log holds every event, as far as it can be repaired by appending to it."""
        with suppress(IntegrityBroken, StorageFailed):
            self._exporter.catch_up(task)

    def config(self, task: TaskId) -> TaskConfig:
        self._exporter.require_sound(task)
        return self.file(task).config()

    def write_reports(self, task: TaskId, document: object, markdown: str) -> None:
        """The joined summary lies in the task's shared reports."""
        reports = self.folder(task) / "shared" / "reports"
        make_folder(reports)
        write_atomic(reports / "joined-summary.json", to_line(document))
        write_atomic(reports / "joined-summary.md", markdown.encode("utf-8", "replace"))

    def keep_plan(self, task: TaskId, text: str) -> None:
        """The plan of the task's run lies in its folder, as it was written."""
        write_atomic(self.folder(task) / "plan.yaml", text.encode("utf-8", "replace"))

    def file(self, task: TaskId) -> TaskFile:
        known = self._files.get(task)
        if known is None:
            known = self._files[task] = TaskFile(self.folder(task) / TASK_FILE)
        return known


def _is_ample(folder: str) -> bool:
    """Whether the disk itself says that it has room for many more."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    counted = found.f_files > 0  # some file systems have as many as fit
    return (
        not found.f_flag & os.ST_RDONLY
        and found.f_bavail * found.f_frsize >= AMPLE_BYTES
        and (found.f_favail >= AMPLE_FILES or not counted)
        and os.access(folder, os.W_OK | os.X_OK)
    )


class Projector:
    """Roster, status.json and metrics_summary.json follow the database.

    Right after whoever waited for a change has been told; a beginning does not wait
    for its own mention, and may be over by then. Their size grows with a task, so
    the larger one gets, and the more often it changes, the more changes share one writing.
    """

    def __init__(
        self, folders: TaskFolders, records: SqliteRecords, complain: Callable[[str], None]
    ) -> None:
        self._folders = folders
        self._records = records
        self._complain = complain
        self._taken_up: set[TaskId] = set()  # what earlier holders left unwritten of these is known
        self._dirty: dict[TaskId, set[str]] = defaultdict(set)
        self._timers: dict[TaskId, asyncio.TimerHandle] = {}
        self._paid: dict[TaskId, float] = {}  # when its share covers all that was written
        self._credit: dict[TaskId, float] = {}  # how long before it may write all the same

    def __call__(self, task: TaskId, recorded: Sequence[Recorded]) -> None:
        """The files show these events soon."""
        self._take_up(task, recorded[0].seq - 1)
        self._dirty[task].update(
            entry.event.subagent for entry in recorded if entry.event.subagent is not None
        )
        loop = asyncio.get_running_loop()
        begins = all(entry.event.type in BEGINNINGS for entry in recorded)
        due = loop.time() + (BEGINNING_SECONDS if begins else 0.0)
        paid = self._paid.get(task, 0.0)
        if due < paid:
            due = max(due + AHEAD_SECONDS, paid - self._credit.get(task, 0.0))
        timer = self._timers.get(task)
        if timer is None or due < timer.when():
            if timer is not None:
                timer.cancel()
            self._timers[task] = loop.call_at(due, self._write, task)

    def catch_up(self) -> Iterator[None]:
        """What an earlier holder had not written is, one task after the other."""
        for task, last in self._records.last_seqs().items():
            if self._take_up(task, last):
                self._write(task)
            yield

    def _take_up(self, task: TaskId, last: int) -> bool:
        """Whether the files lacked something up to that event when they were first looked at."""
        if task in self._taken_up:
            return False
        self._taken_up.add(task)
        shown = _last_shown(self._folders.folder(task) / STATUS_FILE)
        if shown < last:
            self._dirty[task].update(self._changed(task, shown))
        return shown < last

    def flush(self) -> None:
        """Nothing is left to be written, but what cannot be."""
        for task in list(self._dirty):
            self._write(task)

    def close(self) -> None:
        """The same, and nothing is written any more."""
        self.flush()
        for timer in self._timers.values():
            timer.cancel()

    def _write(self, task: TaskId) -> None:
        timer = self._timers.pop(task, None)
        if timer is not None:
            timer.cancel()
        names = self._dirty.pop(task, set())
        began = time.monotonic()
        try:
            self._project(task, names)
        except (BadInput, IntegrityBroken, StorageFailed) as error:
            self._complain(f"{task}: {error.message}")
            self._dirty[task].update(names)
            if isinstance(error, StorageFailed):
                loop = asyncio.get_running_loop()
                self._timers[task] = loop.call_later(LONGEST_SECONDS, self._write, task)
        now = time.monotonic()
        worth = (now - began) / SHARE_OF_TIME
        paid = max(began, self._paid.get(task, 0.0)) + worth
        self._paid[task] = min(paid, now + LONGEST_SECONDS)
        self._credit[task] = AHEAD * worth

    def _project(self, task: TaskId, names: set[str]) -> None:
        known = self._records.task(task)
        totals, counts = self._records.totals(task), self._records.counts(task)
        folder = self._folders.folder(task)
        write_atomic(folder / "metrics_summary.json", metrics_to_text(totals).encode())
        status = partial(write_atomic, folder / STATUS_FILE)
        text = task_status_to_text(known, counts).encode()
        try:
            self._update_roster(known, counts, names)
        except (BadInput, IntegrityBroken):  # of a person's making, and theirs to mend
            status(text)
            raise
        status(text)  # last: by it, the next holder knows whether all was written

    def _update_roster(self, known: Task, counts: Counts, names: set[str]) -> None:
        task = known.id
        changed = (self._records.subagent(task, name) for name in names)  # none of them is kept
        placed = [(subagent.step_idx, _entry(subagent)) for subagent in changed]
        entries = [entry for _, entry in sorted(placed, key=itemgetter(0))]
        gates = self._open_gates(task) if counts.blocked else []
        file = self._folders.file(task)
        if file.update_roster(entries, known.state, known.updated_at, gates):
            everyone = [_entry(each) for each in self._records.newest(task, known.next_step)]
            file.update_roster(everyone, known.state, known.updated_at, gates)

    def _changed(self, task: TaskId, after: int) -> Iterator[str]:
        """Who has an event after that number."""
        while batch := self._records.events(task, after=after, limit=BATCH):
            yield from (each.event.subagent for each in batch if each.event.subagent is not None)
            after = batch[-1].seq

    def _open_gates(self, task: TaskId) -> list[Gate]:
        return [gate for gate in self._records.gates(task) if gate.state == "open"][:MOST_GATES]


def _last_shown(status: Path) -> int:
    """The last event that this file tells of; 0 where it is missing or spoiled."""
    try:
        return int(json.loads(read_plain(status))["last_seq"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return 0


def _entry(subagent: Subagent) -> RosterEntry:
    return RosterEntry(
        instance=subagent.id,
        agent=subagent.contract.agent,
        state=ROSTER_STATES[subagent.standing.status],
        skills=subagent.contract.skills,
    )
