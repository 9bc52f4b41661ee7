"""Wiring of the steward: opening a root, building adapters and services, resuming its work."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from retinue.clock import get_timestamp, read_monotonic_ms
from retinue.core.data_structures import BoundedDict
from retinue.core.errors import IntegrityBroken, Refused, StorageFailed
from retinue.core.ids import TaskId
from retinue.core.placement import NodeFacts
from retinue.core.staffing import ModelBackend
from retinue.core.subagent import Subagent
from retinue.files import RESERVE, storage_failures
from retinue.formats.plan_document import load_stored_plan
from retinue.formats.steward_protocol import DESK
from retinue.gateway.gateway_service import ModelGateway
from retinue.gateway.grants import EventReporter
from retinue.gateway.local_model.weights import find_models_folder, missing
from retinue.gateway.providers import resolve_provider
from retinue.ports import Nodes
from retinue.runtime.cgroups import ChildCgroups
from retinue.runtime.process_runtime import ProcessRuntime
from retinue.runtime.procfs import UNKNOWN, find_calling_child
from retinue.runtime.sandbox_view import ChildUsers
from retinue.settings import HUB_CREDENTIALS, Settings, has_tasks, remove_unused
from retinue.sockets import read_peer
from retinue.steward import event_factory
from retinue.steward.agent_staffing import AgentSelector
from retinue.steward.contract_factory import ContractFactory
from retinue.steward.delivery import Delivery
from retinue.steward.journal import Journal
from retinue.steward.plan_service import PlanService
from retinue.steward.project_tasks import ProjectTasks
from retinue.steward.scheduler import Supervisor
from retinue.steward.spawning import NoteAnswers, SpawnService
from retinue.steward.task_service import SubagentService, TaskService
from retinue.steward.team_run import TeamRunService
from retinue.steward.team_staffing import WorkerSelector
from retinue.store.database import DATABASE, Database
from retinue.store.event_log import EventLogWriter
from retinue.store.ledger import BookingLedger, CostQueries
from retinue.store.projections import TASK_FILE, Projector, settle
from retinue.store.reads import PageQueries, Records
from retinue.store.root_lock import RootLock, prepare_root
from retinue.store.sqlite_store import SqliteStore
from retinue.subagent_types.type_files import load_catalogue
from retinue.trust import is_copy, make_untrusted_error, mark_root, read_identity
from retinue.workspaces.agent_folder import FolderWorkspace
from retinue.workspaces.file_watch import FileWatch, NotesFolder
from retinue.workspaces.folder_cleanup import sweep
from retinue.workspaces.git.git_command import Git
from retinue.workspaces.git.git_join import GitChecking, GitJoining
from retinue.workspaces.git.shared_checkouts import SharedCheckouts
from retinue.workspaces.git.user_repository import GitSources, find_head, make_owners_git
from retinue.workspaces.owned_files import remove_tree
from retinue.workspaces.python_environment import find_interpreter
from retinue.workspaces.secret_values import require_secrets
from retinue.workspaces.tool_server_checks import require_ready
from retinue.workspaces.workspace_view import LiveTestimony, WorkspaceInspector, WorkspaceReader


def _make_contract_factory(
    folders: ProjectTasks,
    runtime: ProcessRuntime,
    gateway: ModelGateway,
    sources: GitSources,
    nodes: Nodes | None,
    root: Path,
) -> ContractFactory:
    # Container engines leave one of these files in their containers.
    marks = (Path("/.dockerenv"), Path("/run/.containerenv"))
    project = folders.project
    search = os.environ.get("PATH", os.defpath)
    workers = WorkerSelector(
        load_catalogue=partial(load_catalogue, project),
        find_missing_local_model=lambda: missing(find_models_folder(os.environ)),
        find_missing_key=_find_missing_key,
        require_server_ready=partial(
            require_ready,
            project=project,
            variables=os.environ,
            search=search,
        ),
        agents=AgentSelector(search, _find_missing_key, Path.home()),
    )
    return ContractFactory(
        folders,
        runtime,
        workers,
        in_container=any(mark.exists() for mark in marks),
        nodes=nodes,
        get_remaining_budget=gateway.get_remaining_budget,
        find_source=partial(find_head, sources, project),
        require_secrets=lambda secrets, redact: require_secrets(
            secrets, os.environ, root, redact=redact
        ),
        find_interpreter=find_interpreter,
    )


def _find_missing_key(backend: ModelBackend) -> str:
    return resolve_provider(backend).find_missing_variable(os.environ)


# Removed from a copied root.
OF_THE_ORIGINAL = ("gateway.key", "gateway.port", HUB_CREDENTIALS, "nodes.json")


@dataclass(frozen=True, kw_only=True)
class App:
    """An open root. This process holds its lock and is its only writer.

    An untrusted root is opened read-only: nothing in it is run, obeyed as configuration, or
    written.
    """

    settings: Settings
    tasks: TaskService
    subagents: SubagentService
    spawning: SpawnService
    delivery: Delivery
    plans: PlanService
    team_runs: TeamRunService
    supervisor: Supervisor
    journal: Journal
    records: Records
    folders: ProjectTasks
    workspaces: FolderWorkspace
    runtime: ProcessRuntime
    cluster: Any  # a ClusterRuntime if the root is connected to a hub, else None
    gateway: ModelGateway
    notes: NotesFolder
    task_file_watch: FileWatch  # edits of task.yaml
    database: Database
    projector: Projector
    lock: RootLock | None  # None: the root is untrusted and open read-only
    complain: Callable[[str], None]
    was_empty: bool = False  # the root had no database when it was opened
    # Held by a collection, a deletion or a backup: one of them at a time.
    collection_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    # Rendered rows of closed subagents, which never change; somewhat more than a list shows.
    closed_rows: BoundedDict[tuple[str, str], dict[str, Any]] = field(
        default_factory=lambda: BoundedDict(256)
    )

    @cached_property
    def pages(self) -> PageQueries:
        return PageQueries(self.database, self.records)

    @cached_property
    def costs(self) -> CostQueries:
        return CostQueries(self.database)

    @cached_property
    def live_testimony(self) -> LiveTestimony:
        return LiveTestimony(self.workspaces.get_folder)

    @cached_property
    def workspace_inspector(self) -> WorkspaceInspector:
        return WorkspaceInspector(self.workspaces)

    @cached_property
    def workspace_reader(self) -> WorkspaceReader:
        return WorkspaceReader(self.workspaces.find_workspace)

    @property
    def is_unused(self) -> bool:
        """Whether the root was empty when it was opened and no task has been created since."""
        return (
            self.was_empty
            and not self.records.list_tasks(1)
            and not has_tasks(self.settings.root)
            # The record of a deleted task is kept.
            and not self.database.fetch_rows("deleted_without_task")
        )

    def forget_task(self, task: TaskId) -> None:
        """Drop what is cached of a deleted task."""
        self.projector.forget_task(task)
        self.folders.forget_task(task)
        self.records.forget_task(task)
        for key in [key for key in self.closed_rows if key[0] == task]:
            self.closed_rows.pop(key, None)

    async def close(self) -> None:
        """Write everything and release the root; living children go on for the next steward."""
        # Runs first, then the supervisor and the gateway that they use, then the database.
        await self.team_runs.detach()
        await self.plans.detach()
        self.notes.close()
        self.task_file_watch.close()
        await self.supervisor.detach()
        if self.cluster is not None:
            await self.cluster.close()
        await self.gateway.close()
        self.runtime.close()
        self.projector.close()
        unused = self.is_unused and self.lock is not None and self.lock.is_in_place
        self.database.close()
        if unused:
            # After the database, which removes its write-ahead log by name; before the lock is
            # released, because afterwards the files may belong to the next steward.
            remove_unused(self.settings.root, folder=self.settings.root_is_new)
        RESERVE.release()
        if self.lock is not None:
            self.lock.release()


def open_app(settings: Settings, complain: Callable[[str], None]) -> App:
    """Open a root for writing; call `resume` to go on with its work.

    Raises:
        Refused: the root is not trusted.
        StewardUnavailable: another process holds the root.
        IntegrityBroken: its database is missing, damaged, or behind the logs.
        StorageFailed: the system refuses a file or a descriptor.
    """
    with storage_failures(settings.root):
        prepare_root(settings.root)
        # The lock comes before any look at the database: the holder is its only writer.
        lock = RootLock(settings.root)
        try:
            _require_database(settings.root)
            was_empty = not (settings.root / DATABASE).exists()
            database = Database(settings.root / DATABASE)
            try:
                _forget_processes(settings.root, database)
                _finish_deletions(settings.root, database)
                app = _wire(settings, database, lock, complain)
                RESERVE.fill()
                return replace(app, was_empty=was_empty)
            except BaseException:
                database.close()
                raise
        except BaseException:
            lock.release()
            raise


def open_to_read(settings: Settings, complain: Callable[[str], None]) -> App:
    """Open an untrusted root read-only.

    Raises:
        Refused: the root has no database.
        IntegrityBroken: its database is damaged or has another version.
        StorageFailed: the system refuses a file or a descriptor.
    """
    path = settings.root / DATABASE
    if not path.is_file() or path.is_symlink():
        raise make_untrusted_error(settings.root)
    with storage_failures(settings.root):
        database = Database(path, read_only=True)
        try:
            app = _wire(settings, database, None, complain)
        except BaseException:
            database.close()
            raise
    RESERVE.fill()
    return app


def _forget_processes(root: Path, database: Database) -> None:
    """In a copy of a root, forget the processes and keys, which belong to the original.

    The root is marked last: after a crash in between, the next steward still sees a copy.
    """
    if is_copy(root):
        database.forget_processes()
        # Security: with the same key, tokens of the original's children would be valid here. With
        # its credentials for the hub, the copy would revoke what the original runs on nodes.
        for name in OF_THE_ORIGINAL:
            (root / name).unlink(missing_ok=True)
        mark_root(root, os.environ)
    elif read_identity(root) is None:
        # Trusted by path, or by an older version.
        mark_root(root, os.environ)


def _finish_deletions(root: Path, database: Database) -> None:
    """Remove the folders of deleted tasks that a killed steward left behind."""
    for row in database.fetch_rows("deleted_without_task"):
        folder = root / "tasks" / str(row["task_id"])
        agents = folder / "agents"
        # A file that cannot be removed now does not keep the root from opening.
        with suppress(StorageFailed, OSError):
            if not folder.is_symlink() and agents.is_dir() and not agents.is_symlink():
                for agent in list(agents.iterdir()):
                    sweep(agent, force=True)
            remove_tree(folder)


def find_caller(app: App, connection: socket.socket, *, for_children: bool) -> Subagent | None:
    """Return the subagent whose process opened a connection, or None for the user.

    Over the socket for children the result is never None.

    Raises:
        Refused: the process has ended or is in an unknown PID namespace; it belongs to another
            user; or it is not a child and uses the socket for children.
    """
    children = app.supervisor.map_children()
    found = find_calling_child(connection, children)
    if found is not None and found != UNKNOWN:
        return children[found]
    if for_children or found == UNKNOWN:
        raise Refused(
            "no running subagent of this root opened this connection"
            if for_children
            else "the process that opened this connection has ended, or is not on this machine",
            code="unknown_caller",
            hint="keep the process that connects alive until it is answered; the socket in "
            f"'{DESK}' is for subagents, others use the one in the root",
        )
    # Security: apart from root, only the user who runs the steward may call it.
    if read_peer(connection)[1] not in (os.geteuid(), 0):
        raise Refused("the process belongs to another user", code="unknown_caller")
    return None


def _record_node(journal: Journal, supervisor: Supervisor, what: str, node: NodeFacts) -> None:
    """Record what happened to a node in the log of each task that it may concern."""
    for task in supervisor.list_tasks_on_nodes():
        # A full disk is no reason to stop watching nodes.
        with suppress(StorageFailed):
            journal.record(task, [event_factory.make_node_event(what, node)])


def resume(app: App) -> None:
    """Adopt, recover or restart every subagent and run that was under way."""
    if app.cluster is not None:
        app.cluster.link.start()
    for task in app.records.list_tasks(-1, open_only=True):
        # Subagents before runs: a run looks at their states to decide what comes next.
        left = app.supervisor.resume(task.id)
        app.plans.resume(task.id, load_stored_plan, left)
        app.team_runs.resume(task.id)
        if any(gate.state == "open" for gate in app.records.list_gates(task.id)):
            # An answer may have been written while no steward ran: look at the notes once.
            app.notes.watch(task.id)
            app.notes.touch(task.id)


async def update_task_files(app: App) -> None:
    """Write task files that an earlier steward left outdated; clients are served in between."""
    for _ in app.projector.write_outdated():
        await asyncio.sleep(0)


def _require_database(root: Path) -> None:
    """Raises:
    IntegrityBroken: task folders exist without a database.
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
    settings: Settings, database: Database, lock: RootLock | None, complain: Callable[[str], None]
) -> App:
    # 1. The database, the files that are projected from it, and the journal that writes both
    tasks_folder = settings.root / "tasks"
    records = Records(database)
    exporter, folders = _make_folders(settings, records, complain, read_only=lock is None)
    projector = Projector(folders, records, complain)
    notes = NotesFolder(tasks_folder, complain)
    task_file_watch = FileWatch(tasks_folder, TASK_FILE, complain)
    store = SqliteStore(database, records, get_timestamp)
    failpoint = make_failpoint(settings.failpoint)
    reporter = EventReporter(
        record=lambda task, event: journal.record(task, [event]), complain=complain
    )
    gateway = ModelGateway(
        settings.root, _open_ledger(database, read_only=lock is None), folders.read_config, reporter
    )
    journal = Journal(store, [exporter, projector, gateway, notes], failpoint)
    # 2. What starts children and joins their output
    runtime = _make_runtime(settings.root)
    workspaces = FolderWorkspace(
        settings.root, settings.child_environment, os.environ, gateway.make_digest
    )
    sources = GitSources(Git(), make_owners_git(os.environ), tasks_folder)
    checkouts = SharedCheckouts(
        sources.git, settings.root, partial(runtime.layers_missing, settings.root)
    )
    # A root that is connected to a hub can run children on other machines as well.
    cluster = None
    if lock is not None and (settings.root / HUB_CREDENTIALS).exists():
        cluster = import_module("retinue.cluster.cluster_runtime").connect_root(
            settings.root, runtime, complain, failpoint
        )
    supervisor = Supervisor(
        journal=journal,
        records=records,
        runtime=cluster or runtime,
        workspaces=workspaces,
        gateway=gateway,
        joining=GitJoining(sources, workspaces, runtime.users, checkouts),
        checking=GitChecking(sources, workspaces, runtime.users, checkouts),
        task_file_watch=task_file_watch,
        read_config=folders.read_config,
        expect_team=runtime.expect_team,
        monotonic_ms=read_monotonic_ms,
        failpoint=failpoint,
        complain=complain,
        nodes=cluster,
    )
    if cluster is not None:
        cluster.link.report = partial(_record_node, journal, supervisor)
    # 3. What the verbs call
    contracts = _make_contract_factory(folders, runtime, gateway, sources, cluster, settings.root)
    tasks = TaskService(
        journal=journal,
        records=records,
        folders=folders,
        supervisor=supervisor,
        get_timestamp=get_timestamp,
    )
    spawning = SpawnService(
        journal=journal,
        records=records,
        folders=folders,
        supervisor=supervisor,
        contracts=contracts,
        tasks=tasks,
    )
    plans = PlanService(
        journal=journal,
        records=records,
        folders=folders,
        supervisor=supervisor,
        contracts=contracts,
        sources=sources,
        tasks=tasks,
        project=settings.project,
        complain=complain,
    )
    team_runs = TeamRunService(
        journal=journal,
        records=records,
        folders=folders,
        supervisor=supervisor,
        contracts=contracts,
        tasks=tasks,
        plans=plans,
        complain=complain,
    )
    notes.look = NoteAnswers(records, spawning, notes.read, complain).look
    return App(
        settings=settings,
        tasks=tasks,
        subagents=SubagentService(records=records, supervisor=supervisor, folders=folders),
        spawning=spawning,
        delivery=Delivery(
            journal=journal, store=store, records=records, folders=folders, plans=plans
        ),
        plans=plans,
        team_runs=team_runs,
        supervisor=supervisor,
        journal=journal,
        notes=notes,
        task_file_watch=task_file_watch,
        records=records,
        folders=folders,
        workspaces=workspaces,
        runtime=runtime,
        cluster=cluster,
        gateway=gateway,
        database=database,
        projector=projector,
        lock=lock,
        complain=complain,
    )


def _make_runtime(root: Path) -> ProcessRuntime:
    """Return the runtime, after removing cgroups that a killed steward left."""
    cgroups = ChildCgroups(root)
    cgroups.sweep()
    return ProcessRuntime(users=ChildUsers(root), cgroups=cgroups)


def _make_folders(
    settings: Settings,
    records: Records,
    complain: Callable[[str], None],
    *,
    read_only: bool,
) -> tuple[EventLogWriter, ProjectTasks]:
    """Return the writer of event logs and the task folders."""
    tasks = settings.root / "tasks"
    exporter = EventLogWriter(tasks, records, complain, read_only=read_only)
    # Bring the logs up to date with the database before anything is added.
    if not read_only:
        settle(tasks, records, exporter, complain)
    return exporter, ProjectTasks(tasks, exporter, settings.project)


def _open_ledger(database: Database, *, read_only: bool) -> BookingLedger:
    """Return the ledger of model requests."""
    bookings = BookingLedger(database, get_timestamp)
    # Settle the requests that were under way when an earlier steward ended.
    if not read_only:
        bookings.settle()
    return bookings


def make_failpoint(armed: str) -> Callable[[str], None]:
    """Return a function that kills this process at the n-th pass of the point in `name:n`.

    Crash tests arm it; an empty string arms nothing.
    """
    name, _, number = armed.partition(":")
    left = {name: int(number or 1)} if name else {}

    def pass_by(point: str) -> None:
        if point in left:
            left[point] -= 1
            if not left[point]:
                os.kill(os.getpid(), signal.SIGKILL)

    return pass_by
