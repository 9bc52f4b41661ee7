"""Wiring: settings become adapters, adapters become the Service."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from retinue.clock import monotonic_ms, now
from retinue.domain.errors import IntegrityBroken, Refused
from retinue.domain.newest import Newest
from retinue.domain.subagent import Subagent
from retinue.files import RESERVE, storage_failures
from retinue.gateway.entrance import Entrance
from retinue.gateway.reporting import Reporting
from retinue.runtimes.callers import child_above
from retinue.runtimes.process import ProcessRuntime
from retinue.service import Service
from retinue.settings import Settings
from retinue.store.bookings import Bookings
from retinue.store.database import DATABASE, Database
from retinue.store.export import Exporter
from retinue.store.folders import TASK_FILE, Projector
from retinue.store.lock import RootLock, prepare_root
from retinue.store.opening import settle
from retinue.store.pages import Pages
from retinue.store.records import SqliteRecords
from retinue.store.sqlite import SqliteStore
from retinue.supervisor.journal import Journal
from retinue.supervisor.outside import Outside
from retinue.wire.plan import kept_plan
from retinue.wiring import ProjectTasks, make_service
from retinue.workspaces.folder import FolderWorkspace
from retinue.workspaces.inspection import Inspection
from retinue.workspaces.live import LiveTestimony
from retinue.workspaces.notes import NotesFolder
from retinue.workspaces.taking import Taking
from retinue.workspaces.watching import Watched


@dataclass(frozen=True, kw_only=True)
class App:
    """A root that is open: this process holds its lock and is its only writer."""

    settings: Settings
    service: Service
    records: SqliteRecords
    folders: ProjectTasks
    workspaces: FolderWorkspace
    runtime: ProcessRuntime
    gateway: Entrance
    notes: NotesFolder
    edits: Watched  # of task.yaml
    database: Database
    projector: Projector
    lock: RootLock
    complain: Callable[[str], None]
    collecting: asyncio.Lock = field(default_factory=asyncio.Lock)  # one removes at a time
    closed_rows: Newest[tuple[str, str], dict[str, Any]] = field(
        default_factory=lambda: Newest(256)  # as many as a list shows, and some more
    )

    @cached_property
    def pages(self) -> Pages:
        return Pages(self.database, self.records)

    @cached_property
    def live(self) -> LiveTestimony:
        return LiveTestimony(self.workspaces)

    @cached_property
    def inspection(self) -> Inspection:
        return Inspection(self.workspaces)

    @cached_property
    def taking(self) -> Taking:
        return Taking(self.workspaces.workspace_of)

    async def close(self) -> None:
        """Everything is written; living children go on and await the next holder."""
        await self.service.roots.detach()
        await self.service.plans.detach()
        self.notes.close()
        self.edits.close()
        await self.service.supervisor.detach()
        await self.gateway.close()
        self.runtime.close()
        self.projector.close()
        self.database.close()
        RESERVE.release()
        self.lock.release()


def open_app(settings: Settings, complain: Callable[[str], None]) -> App:
    """The root is open. What was under way in it goes on once `resume` is called.

    Raises:
        StewardUnavailable: another process holds it.
        IntegrityBroken: its database is missing, damaged, or behind the logs.
        StorageFailed: the system refuses a file or a descriptor.
    """
    with storage_failures(settings.root):
        prepare_root(settings.root)
        lock = RootLock(settings.root)
        try:
            _require_database(settings.root)
            database = Database(settings.root / DATABASE)
            try:
                app = _wire(settings, database, lock, complain)
                RESERVE.fill()
                return app
            except BaseException:
                database.close()
                raise
        except BaseException:
            lock.release()
            raise


def caller(app: App, pid: int) -> Subagent | None:
    """The subagent that a process belongs to, or None when it is nobody's.

    Raises:
        Refused: it comes out of a namespace that is none of ours.
    """
    children = app.service.supervisor.children()
    found = child_above(pid, children)
    if found == 0:
        raise Refused("whose process this is cannot be told", code="unknown_caller")
    return None if found is None else children[found]


def resume(app: App) -> None:
    """Every subagent and run that was under way is adopted, recovered, or started again."""
    for task in app.records.tasks(-1, open_only=True):
        left = app.service.supervisor.resume(task.id)
        app.service.plans.resume(task.id, kept_plan, left)
        app.service.roots.resume(task.id)
        if any(gate.state == "open" for gate in app.records.gates(task.id)):
            app.notes.watch(task.id)
            app.notes.touch(task.id)  # somebody may have answered while nobody held the root


async def catch_up(app: App) -> None:
    """What an earlier holder had not shown in the files of tasks is; whoever asks comes first."""
    for _ in app.projector.catch_up():
        await asyncio.sleep(0)


def _require_database(root: Path) -> None:
    """Raises:
    IntegrityBroken: tasks exist, and their database does not.
    """
    database = root / DATABASE
    left = [path.name for path in (root / "tasks").iterdir()]
    empty = not database.exists() or database.stat().st_size == 0
    orphaned = not database.exists() and database.with_name(DATABASE + "-wal").exists()
    if empty and (left or orphaned):
        raise IntegrityBroken(
            f"{database} is missing or empty, while {len(left)} task folders exist",
            code="database_missing",
            hint="logs and workspaces are intact; 'retinue verify --rebuild' makes a new database "
            "from them",
        )


def _wire(
    settings: Settings, database: Database, lock: RootLock, complain: Callable[[str], None]
) -> App:
    tasks, records = settings.root / "tasks", SqliteRecords(database)
    exporter, folders = _folders(settings, records, complain)
    projector, notes = Projector(folders, records, complain), NotesFolder(tasks, complain)
    store, pass_by = SqliteStore(database, records, now), failpoint(settings.failpoint)
    told = Reporting(record=lambda task, new: journal.record(task, [new]), complain=complain)
    gateway = Entrance(settings.root, _books(database), folders.config, told)
    journal = Journal(store, [exporter, projector, gateway, notes], pass_by)
    workspaces = FolderWorkspace(settings.root, settings.child_environment, os.environ)
    outside = partial(
        Outside,
        journal=journal,
        records=records,
        policy=folders.config,
        edits=(edits := Watched(tasks, TASK_FILE, complain)),
        monotonic_ms=monotonic_ms,
        gateway=gateway,
        runtime=(runtime := ProcessRuntime()),
        expect_team=runtime.expect_team,
        workspaces=workspaces,
        failpoint=pass_by,
        complain=complain,
    )
    return App(
        settings=settings,
        service=make_service(outside, store, folders, workspaces, gateway, notes, runtime),
        notes=notes,
        edits=edits,
        records=records,
        folders=folders,
        workspaces=workspaces,
        runtime=runtime,
        gateway=gateway,
        database=database,
        projector=projector,
        lock=lock,
        complain=complain,
    )


def _folders(
    settings: Settings, records: SqliteRecords, complain: Callable[[str], None]
) -> tuple[Exporter, ProjectTasks]:
    """Who writes the logs, which agree with the database from here on, and all else of tasks."""
    tasks = settings.root / "tasks"
    exporter = Exporter(tasks, records, complain)
    settle(tasks, records, exporter, complain)
    return exporter, ProjectTasks(tasks, exporter, settings.project)


def _books(database: Database) -> Bookings:
    """The ledger, with what was under way when an earlier holder ended."""
    bookings = Bookings(database, now)
    bookings.settle()
    return bookings


def failpoint(armed: str) -> Callable[[str], None]:
    """Dies at the n-th passing of a named point, as `name` or `name:n` says; else does nothing."""
    name, _, number = armed.partition(":")
    left = {name: int(number or 1)} if name else {}

    def pass_by(point: str) -> None:
        if point in left:
            left[point] -= 1
            if not left[point]:
                os.kill(os.getpid(), signal.SIGKILL)

    return pass_by
