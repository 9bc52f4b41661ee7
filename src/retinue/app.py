"""Wiring: settings become adapters, adapters become the Service."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from retinue.domain.brief import Brief
from retinue.domain.contract import Context
from retinue.domain.errors import IntegrityBroken, Refused
from retinue.domain.join import Source
from retinue.domain.policy import TaskConfig
from retinue.domain.subagent import Subagent
from retinue.gateway.entrance import Entrance
from retinue.gateway.reporting import Reporting
from retinue.ports import Runtime
from retinue.runtimes.callers import child_above
from retinue.runtimes.process import ProcessRuntime
from retinue.runtimes.view import child_uid
from retinue.service import (
    Binder,
    Hands,
    Plans,
    Service,
    Spawning,
    SubagentVerbs,
    TaskVerbs,
    Waiting,
)
from retinue.settings import Settings
from retinue.store.bookings import Bookings
from retinue.store.database import DATABASE, Database
from retinue.store.export import Exporter
from retinue.store.folders import Projector, TaskFolders
from retinue.store.lock import RootLock, prepare_root
from retinue.store.opening import settle
from retinue.store.records import SqliteRecords
from retinue.store.sqlite import SqliteStore
from retinue.supervisor.joiner import Joiner
from retinue.supervisor.journal import Journal
from retinue.supervisor.outside import Outside
from retinue.supervisor.supervisor import Supervisor
from retinue.wire.plan import plan_from_json
from retinue.wire.views import timestamp
from retinue.workspaces.checking import GitChecking
from retinue.workspaces.contexts import check_contexts
from retinue.workspaces.folder import FolderWorkspace
from retinue.workspaces.git import Git
from retinue.workspaces.joining import GitJoining
from retinue.workspaces.live import LiveTestimony
from retinue.workspaces.sources import GitSources, head


@dataclass(frozen=True, kw_only=True)
class App:
    """A root that is open: this process holds its lock and is its only writer."""

    settings: Settings
    service: Service
    records: SqliteRecords
    folders: TaskFolders
    workspaces: FolderWorkspace
    runtime: ProcessRuntime
    gateway: Entrance
    live: LiveTestimony
    database: Database
    projector: Projector
    lock: RootLock
    complain: Callable[[str], None]
    closed_rows: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    async def close(self) -> None:
        """Everything is written; living children go on and await the next holder."""
        await self.service.plans.detach()
        await self.service.supervisor.detach()
        await self.gateway.close()
        self.runtime.close()
        self.projector.flush()
        self.database.close()
        self.lock.release()


class ProjectTasks(TaskFolders):
    """Implements `Tasks`: contexts come from the project, the caller's folder, or as configured."""

    def __init__(self, tasks: Path, exporter: Exporter, project: Path) -> None:
        super().__init__(tasks, exporter)
        self.tasks, self.project = tasks, project

    def contexts(
        self, brief: Brief, base: Path, config: TaskConfig, parent: Subagent | None
    ) -> Context:
        """A person gives of the project; a subagent gives of what it was given itself."""
        roots = [self.project, base, *map(Path, config.context_roots)]
        if parent is not None:
            roots = [base, *map(Path, parent.contract.context.paths)]
        allowed = list(dict.fromkeys(root.resolve() for root in roots))
        return check_contexts(
            brief.context_paths, brief.context_files, base=base.resolve(), allowed=allowed
        )


def open_app(settings: Settings, complain: Callable[[str], None]) -> App:
    """The root is open. What was under way in it goes on once `resume` is called.

    Raises:
        StewardUnavailable: another process holds it.
        IntegrityBroken: its database is missing, damaged, or behind the logs.
    """
    prepare_root(settings.root)
    lock = RootLock(settings.root)
    try:
        require_database(settings.root)
        database = Database(settings.root / DATABASE)
        try:
            return _wire(settings, database, lock, complain)
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
    """Every subagent that was under way is adopted, recovered, or started again."""
    for task in app.records.open_tasks():
        app.service.supervisor.resume(task.id)
        app.service.plans.resume(task.id, plan_from_json)


def require_database(root: Path) -> None:
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
    tasks = settings.root / "tasks"
    records = SqliteRecords(database)
    exporter = Exporter(tasks, records, complain)
    settle(tasks, records, exporter, complain)
    folders = ProjectTasks(tasks, exporter, settings.project)
    projector = Projector(folders, records, complain)
    store, pass_by = SqliteStore(database, records, now), failpoint(settings.failpoint)
    told = Reporting(record=lambda task, new: journal.record(task, [new]), complain=complain)
    bookings = Bookings(database, now)
    bookings.settle()
    gateway = Entrance(settings.root, bookings, folders.config, told)
    journal = Journal(store, [exporter, projector, gateway], pass_by)
    workspaces = FolderWorkspace(settings.root, settings.child_environment)
    runtime = ProcessRuntime()
    outside = Outside(
        journal=journal,
        records=records,
        policy=folders.config,
        monotonic_ms=monotonic_ms,
        gateway=gateway,
        runtime=runtime,
        workspaces=workspaces,
        failpoint=pass_by,
        complain=complain,
    )
    return App(
        settings=settings,
        service=_service(outside, store, folders, workspaces, gateway),
        records=records,
        folders=folders,
        workspaces=workspaces,
        runtime=runtime,
        gateway=gateway,
        live=LiveTestimony(workspaces),
        database=database,
        projector=projector,
        lock=lock,
        complain=complain,
    )


def _service(
    outside: Outside,
    store: SqliteStore,
    folders: ProjectTasks,
    workspaces: FolderWorkspace,
    gateway: Entrance,
) -> Service:
    sources = GitSources(Git(), folders.tasks)
    joining = GitJoining(sources, workspaces, child_uid)
    checking = GitChecking(sources, workspaces, child_uid)
    outside = replace(outside, joining=joining, checking=checking)
    binder = _binder(folders, outside.runtime, gateway, partial(head, sources, folders.project))
    journal, records, supervisor = outside.journal, outside.records, Supervisor(outside)
    tasks = TaskVerbs(journal, records, folders, supervisor, now)
    hands = Hands(
        journal=journal,
        records=records,
        supervisor=supervisor,
        binder=binder,
        joiner=Joiner(outside),
        sources=sources,
        limit=lambda task: folders.config(task).max_concurrent,
        complain=outside.complain,
    )
    return Service(
        tasks=tasks,
        spawning=Spawning(journal, records, folders, supervisor, binder),
        subagents=SubagentVerbs(records, supervisor),
        waiting=Waiting(journal, store, records, folders),
        plans=Plans(hands, tasks, folders, folders.project),
        supervisor=supervisor,
    )


def _binder(
    folders: ProjectTasks,
    runtime: Runtime,
    gateway: Entrance,
    source: Callable[[], Awaitable[Source]],
) -> Binder:
    """Container engines leave one of these files in what they run."""
    marks = (Path("/.dockerenv"), Path("/run/.containerenv"))
    contained = any(mark.exists() for mark in marks)
    return Binder(folders, runtime, in_container=contained, left=gateway.left, source=source)


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


def now() -> str:
    return timestamp(time.time())


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
