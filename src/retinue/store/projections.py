"""Task folders, and the files in them that are derived from the database."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter, itemgetter
from pathlib import Path

from retinue.core import events
from retinue.core.data_structures import BoundedDict
from retinue.core.errors import BadInput, IntegrityBroken, StorageFailed
from retinue.core.events import Recorded
from retinue.core.ids import TaskId
from retinue.core.lifecycle import ROSTER_STATES
from retinue.core.subagent import Counts, Gate, Subagent, Task
from retinue.core.task_config import NewConfig, TaskConfig
from retinue.files import make_folder, read_plain, storage_failures, write_atomic
from retinue.formats.json_text import to_line
from retinue.formats.views_json import metrics_to_text, task_status_to_text
from retinue.store.event_log import EventLogWriter, make_log_ahead_error
from retinue.store.reads import Records
from retinue.store.task_yaml import MOST_ENDED, RosterEntry, TaskFile
from retinue.store.verify import Problem

TASK_FILE, STATUS_FILE = "task.yaml", "status.json"
MAX_CACHED = 256
MOST_GATES = 50  # shown in task.yaml; `gate list` has them all
ROOM_BYTES = 16 * 1024  # for the records of a subagent that has done nothing yet
# More than a second of spawning can use up.
AMPLE_BYTES = 64 * 1024 * 1024
AMPLE_FILES = 10_000
TRY_AGAIN_SECONDS = 1.0  # between test writes; statvfs does not know every limit
BEGINNINGS = frozenset({events.SUBAGENT_CREATED, events.SUBAGENT_STARTED, events.STARTED})
BEGINNING_SECONDS = 0.03  # a short command has ended by then, so one write shows both
SHARE_OF_TIME = 0.02  # limit for writing projections, however large they grow
LONGEST_SECONDS = 10.0  # longest delay, even after a very slow write
BURST_WRITES = 5  # writes that may come early, so that a few changes in a row hardly wait
BURST_DELAY_SECONDS = 0.05  # delay of an early write, so that a series of spawns is not held up


class TaskFolders:
    """Folders of tasks. Implements the part of `Tasks` about task.yaml."""

    def __init__(
        self,
        tasks: Path,
        exporter: EventLogWriter,
        complete_config: Callable[[TaskConfig], TaskConfig],
    ) -> None:
        """Args: complete_config: adds to a configuration what it leaves to the environment."""
        self._tasks = tasks
        self._exporter = exporter
        self.complete_config = complete_config
        # Each task's configuration as read and as completed; every step reads it.
        self._configs = BoundedDict[TaskId, tuple[TaskConfig, TaskConfig]](MAX_CACHED)
        self._files = BoundedDict[TaskId, TaskFile](MAX_CACHED)
        self._tried = -TRY_AGAIN_SECONDS  # time of the last test write

    def get_folder(self, task: TaskId) -> Path:
        return self._tasks / task

    def create(self, task: Task, config: NewConfig) -> None:
        folder = self.get_folder(task.id)
        try:
            with storage_failures(folder):
                # mkdir is the check as well: of two callers with the same id, one fails.
                folder.mkdir(mode=0o700)
        except StorageFailed as error:
            if isinstance(error.__cause__, FileExistsError):
                raise BadInput(
                    f"task {task.id} exists already",
                    code="duplicate_id",
                    hint="choose another id, or omit it to have one generated",
                ) from None
            raise
        try:
            self.get_file(task.id).create(task, config)
            make_folder(folder / "agents")
        except BaseException:
            self.discard(task.id)
            raise

    def discard(self, task: TaskId) -> None:
        folder = self.get_folder(task)
        self._files.pop(task, None)
        with storage_failures(folder):
            (folder / TASK_FILE).unlink(missing_ok=True)
            (folder / "events.jsonl").unlink(missing_ok=True)
            for path in (folder / "agents", folder):
                if path.is_dir():
                    path.rmdir()

    def forget_task(self, task: TaskId) -> None:
        """Drop what is known of the files of a deleted task."""
        self._files.pop(task, None)
        self._configs.pop(task, None)
        self._exporter.forget_task(task)

    def require_writable(self, task: TaskId) -> None:
        # A full disk refuses the spawn now. Later it would leave subagents without records.
        self._exporter.require_writable(task)
        agents = f"{self.get_folder(task)}/agents"
        now = time.monotonic()
        if now - self._tried < TRY_AGAIN_SECONDS and _is_ample(agents):
            return
        probe = f"{agents}/.room"
        write_atomic(probe, bytes(ROOM_BYTES))
        with storage_failures(probe):
            os.unlink(probe)
        self._tried = now

    def has_workspace(self, task: TaskId, subagent: str) -> bool:
        workspace = self.get_folder(task) / "agents" / subagent / "workspace"
        return workspace.is_dir() and not workspace.is_symlink()

    def list_repairs(self, task: TaskId | None) -> list[Problem]:
        """Return the repairs in the log of one task, or of all, since this process started."""
        return self._exporter.list_repairs(task)

    def repair_log(self, task: TaskId) -> None:
        """Append missing events to the task's log, as far as possible."""
        with suppress(IntegrityBroken, StorageFailed):
            self._exporter.write_missing_events(task)

    def read_config(self, task: TaskId) -> TaskConfig:
        """Return the task's configuration, with the latest edits, as it applies here."""
        self._exporter.require_sound(task)
        read = self.get_file(task).read_config()
        known = self._configs.get(task)
        if known is None or known[0] is not read:
            known = self._configs[task] = (read, self.complete_config(read))
        return known[1]

    def write_reports(self, task: TaskId, document: object, markdown: str) -> None:
        """Write the joined summary into the task's shared reports."""
        reports = self.get_folder(task) / "shared" / "reports"
        make_folder(reports)
        write_atomic(reports / "joined-summary.json", to_line(document))
        write_atomic(reports / "joined-summary.md", markdown.encode("utf-8", "replace"))

    def keep_plan(self, task: TaskId, text: str) -> None:
        """Keep the plan of the task's run in its folder, as it was written."""
        write_atomic(self.get_folder(task) / "plan.yaml", text.encode("utf-8", "replace"))

    def get_config_file(self, task: TaskId) -> Path:
        return self.get_folder(task) / TASK_FILE

    def get_file(self, task: TaskId) -> TaskFile:
        known = self._files.get(task)
        if known is None:
            known = self._files[task] = TaskFile(self.get_folder(task) / TASK_FILE)
        return known


def _is_ample(folder: str) -> bool:
    """Return whether the disk reports plenty of free space."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    counted = found.f_files > 0  # some file systems have no fixed number of files
    return (
        not found.f_flag & os.ST_RDONLY
        and found.f_bavail * found.f_frsize >= AMPLE_BYTES
        and (found.f_favail >= AMPLE_FILES or not counted)
        and os.access(folder, os.W_OK | os.X_OK)
    )


class Projector:
    """Writer of roster, status.json and metrics_summary.json, following the database.

    It writes right after the waiters of a change were notified. The start of a subagent is
    written a little later, because the subagent may have ended by then. The files grow with the
    task: the more a write costs, the more changes share one.
    """

    def __init__(
        self, folders: TaskFolders, records: Records, complain: Callable[[str], None]
    ) -> None:
        self._folders = folders
        self._records = records
        self._complain = complain
        self._compared: set[TaskId] = set()  # tasks whose files were compared with the database
        self._dirty: dict[TaskId, set[str]] = defaultdict(set)
        self._timers: dict[TaskId, asyncio.TimerHandle] = {}
        # When the writes so far have taken no more than their share of the time.
        self._next_write_at: dict[TaskId, float] = {}
        self._credit: dict[TaskId, float] = {}  # how much earlier a write is still allowed

    def __call__(self, task: TaskId, recorded: Sequence[Recorded]) -> None:
        """Schedule a write that shows these events."""
        self._compare_files(task, recorded[0].seq - 1)
        self._dirty[task].update(_name_subagents(recorded))
        loop = asyncio.get_running_loop()
        begins = all(entry.event.type in BEGINNINGS for entry in recorded)
        due = loop.time() + (BEGINNING_SECONDS if begins else 0.0)
        # Throttle: after an expensive write the next one waits, minus the credit for short bursts.
        next_write_at = self._next_write_at.get(task, 0.0)
        if due < next_write_at:
            due = max(due + BURST_DELAY_SECONDS, next_write_at - self._credit.get(task, 0.0))
        timer = self._timers.get(task)
        # Keep the earlier timer; its write shows these events, too.
        if timer is None or due < timer.when():
            if timer is not None:
                timer.cancel()
            self._timers[task] = loop.call_at(due, self._write, task)

    def write_outdated(self) -> Iterator[None]:
        """Write the files that an earlier steward left outdated, one task per step."""
        for task, last in self._records.list_last_seqs().items():
            if self._compare_files(task, last):
                self._write(task)
            yield

    def _compare_files(self, task: TaskId, last: int) -> bool:
        """Return whether the files lacked events when first compared; mark these as unwritten."""
        if task in self._compared:
            return False
        self._compared.add(task)
        shown = _read_last_shown(self._folders.get_folder(task) / STATUS_FILE)
        if shown < last:
            self._dirty[task].update(_name_subagents(self._records.iter_events(task, after=shown)))
        return shown < last

    def flush(self) -> None:
        """Write everything that is due, as far as possible."""
        for task in list(self._dirty):
            self._write(task)

    def forget_task(self, task: TaskId) -> None:
        """Write nothing more for a deleted task."""
        timer = self._timers.pop(task, None)
        if timer is not None:
            timer.cancel()
        self._compared.discard(task)
        for known in (self._dirty, self._next_write_at, self._credit):
            known.pop(task, None)

    def close(self) -> None:
        """Write everything that is due, and stop."""
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
            # The disk may recover by itself. A file that a person broke waits for the next change.
            if isinstance(error, StorageFailed):
                loop = asyncio.get_running_loop()
                self._timers[task] = loop.call_later(LONGEST_SECONDS, self._write, task)
        now = time.monotonic()
        # The time in which a write like this one is no more than its share.
        pause = (now - began) / SHARE_OF_TIME
        next_write_at = max(began, self._next_write_at.get(task, 0.0)) + pause
        self._next_write_at[task] = min(next_write_at, now + LONGEST_SECONDS)
        self._credit[task] = BURST_WRITES * pause

    def _project(self, task: TaskId, names: set[str]) -> None:
        known = self._records.get_task(task)
        totals = self._records.sum_totals(task)
        counts = self._records.count_by_status(task)
        folder = self._folders.get_folder(task)
        write_atomic(folder / "metrics_summary.json", metrics_to_text(totals).encode())
        status = partial(write_atomic, folder / STATUS_FILE)
        text = task_status_to_text(known, counts).encode()
        try:
            self._update_roster(known, counts, names)
        except (BadInput, IntegrityBroken):  # a person broke the file and has to repair it
            status(text)
            raise
        # status.json comes last: by its last_seq the next steward knows that all is written.
        status(text)

    def _update_roster(self, known: Task, counts: Counts, names: set[str]) -> None:
        task = known.id
        changed = (self._records.get_subagent(task, name) for name in names)
        placed = [(subagent.step_idx, _to_roster_entry(subagent)) for subagent in changed]
        entries = [entry for _, entry in sorted(placed, key=itemgetter(0))]
        gates = self._open_gates(task) if counts.blocked else []
        file = self._folders.get_file(task)
        if file.update_roster(entries, known.state, known.updated_at, gates):
            closed = self._records.list_newest_closed(task, MOST_ENDED)
            shown = [*closed, *self._records.list_unclosed(task)]
            entries = [_to_roster_entry(each) for each in sorted(shown, key=attrgetter("step_idx"))]
            file.update_roster(entries, known.state, known.updated_at, gates)

    def _open_gates(self, task: TaskId) -> list[Gate]:
        return [gate for gate in self._records.list_gates(task) if gate.state == "open"][
            :MOST_GATES
        ]


def _name_subagents(recorded: Iterable[Recorded]) -> Iterator[str]:
    """Yield the subagents that these events are about."""
    return (each.event.subagent for each in recorded if each.event.subagent is not None)


def _read_last_shown(status: Path) -> int:
    """Return the number of the last event that the file shows; 0 if it is missing or damaged."""
    try:
        return int(json.loads(read_plain(status))["last_seq"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return 0


def _to_roster_entry(subagent: Subagent) -> RosterEntry:
    return RosterEntry(
        instance=subagent.id,
        agent=subagent.contract.agent,
        state=ROSTER_STATES[subagent.standing.status],
        skills=subagent.contract.skills,
    )


OF_A_NEW_TASK = {"task.yaml", ".task.yaml.new", "agents"}


def settle(
    tasks: Path, records: Records, exporter: EventLogWriter, complain: Callable[[str], None]
) -> None:
    """Bring every log up to date, and remove folders of tasks that were never recorded.

    Raises:
        IntegrityBroken: a log has more events than the database; it was not changed.
    """
    known = records.list_last_seqs()
    names = {name.lower() for name in known}
    unknown = [path for path in tasks.iterdir() if path.name.lower() not in names]
    for folder in unknown:
        log = folder / "events.jsonl"
        if log.is_file() and log.stat().st_size:
            raise make_log_ahead_error(f"{log} belongs to a task that the database does not know")
    exporter.write_all_missing_events(known)
    for folder in filter(Path.is_dir, unknown):
        try:
            _discard(folder, complain)
        except StorageFailed as error:
            complain(error.message)


def _discard(folder: Path, complain: Callable[[str], None]) -> None:
    """Remove a folder with only the files of a new task; leave any other folder alone."""
    with storage_failures(folder):
        agents = folder / "agents"
        # A crash between creating the folder and recording the task leaves just these files.
        left = {path.name for path in folder.iterdir()}
        if not left <= OF_A_NEW_TASK or (agents.is_dir() and any(agents.iterdir())):
            complain(f"{folder} belongs to no task and was not changed")
            return
        for name in left - {"agents"}:
            (folder / name).unlink()
        if agents.is_dir():
            agents.rmdir()
        folder.rmdir()
