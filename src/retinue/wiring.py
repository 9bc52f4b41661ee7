"""The Service, made of its adapters."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from retinue.clock import now
from retinue.domain.brief import Brief
from retinue.domain.contract import Context
from retinue.domain.defaults import default_backends
from retinue.domain.ids import TaskId
from retinue.domain.join import Source
from retinue.domain.policy import TaskConfig
from retinue.domain.staffing import ModelBackend
from retinue.domain.subagent import Subagent
from retinue.gateway.entrance import Entrance
from retinue.gateway.local.weights import missing, models_folder
from retinue.gateway.providers import provider_of
from retinue.ports import Runtime
from retinue.runtimes.process import ProcessRuntime
from retinue.runtimes.view import child_uid
from retinue.service import (
    Binder,
    Crew,
    Hands,
    Notes,
    Plans,
    RootRuns,
    Service,
    Spawning,
    SubagentVerbs,
    SubmittedPlans,
    TaskVerbs,
    Waiting,
)
from retinue.store.export import Exporter
from retinue.store.folders import TaskFolders
from retinue.store.sqlite import SqliteStore
from retinue.subagent_types.loading import discover
from retinue.supervisor.outside import Outside
from retinue.supervisor.supervisor import Supervisor
from retinue.workspaces.bases import Bases
from retinue.workspaces.checking import GitChecking
from retinue.workspaces.contexts import Giving, check_contexts
from retinue.workspaces.folder import FolderWorkspace
from retinue.workspaces.git import Git
from retinue.workspaces.joining import GitJoining
from retinue.workspaces.notes import NotesFolder
from retinue.workspaces.owners import owners_git
from retinue.workspaces.sources import GitSources, head
from retinue.workspaces.toolservers import require_ready


class ProjectTasks(TaskFolders):
    """Implements `Tasks`: contexts come from the project, the caller's folder, or as configured."""

    def __init__(self, tasks: Path, exporter: Exporter, project: Path) -> None:
        super().__init__(tasks, exporter)
        self.tasks, self.project = tasks, project
        self._known: tuple[TaskConfig, TaskConfig] | None = None  # as it was read, and completed

    def config(self, task: TaskId) -> TaskConfig:
        """The same object as long as the file is the same: it is asked for at every step."""
        read = super().config(task)
        if self._known is None or self._known[0] is not read:
            self._known = read, self.completed(read)
        return self._known[1]

    def completed(self, config: TaskConfig) -> TaskConfig:
        """The same, knowing who answers where nobody was named."""
        return replace(config, fallback=default_backends(os.environ))

    def contexts(
        self, brief: Brief, base: Path, config: TaskConfig, parent: Subagent | None
    ) -> Context:
        """A person gives of the project, and what subagents left; a subagent gives of what it
        was given itself, and the lead of a run what its own left.
        """
        if not brief.context_paths and not brief.context_files:
            return Context(base=str(base))
        root = self.tasks.parent
        roots = [self.project, base, root, *map(Path, config.context_roots)]
        if parent is not None:
            task = self.tasks / parent.task
            own = [task / "agents" / parent.id / "workspace"]  # the base below it may be a link
            own += [task] if parent.contract.is_root else []
            roots = [*own, *map(Path, parent.contract.context.paths)]
        allowed = list(dict.fromkeys(each.resolve() for each in roots))
        giving = Giving(base=base, allowed=allowed, root=root.resolve())
        return check_contexts(brief.context_paths, brief.context_files, giving)


def make_service(
    all_but_joining: Callable[..., Outside],
    store: SqliteStore,
    folders: ProjectTasks,
    workspaces: FolderWorkspace,
    gateway: Entrance,
    notes: NotesFolder,
    runtime: ProcessRuntime,
) -> Service:
    sources = GitSources(Git(), owners_git(os.environ), folders.tasks)
    bases = Bases(sources.git, workspaces.root, partial(runtime.layers_missing, workspaces.root))
    given = sources, workspaces, child_uid, bases
    outside = all_but_joining(joining=GitJoining(*given), checking=GitChecking(*given))
    binder = _binder(folders, outside.runtime, gateway, partial(head, sources, folders.project))
    journal, records, supervisor = outside.journal, outside.records, Supervisor(outside)
    tasks = TaskVerbs(journal, records, folders, supervisor, now)
    hands = Hands(
        journal=journal,
        records=records,
        supervisor=supervisor,
        binder=binder,
        sources=sources,
        limit=lambda task: folders.config(task).max_concurrent,
        complain=outside.complain,
    )
    spawning = Spawning(journal, records, folders, supervisor, binder)
    plans = Plans(hands, tasks, folders, folders.project)
    notes.look = Notes(records, spawning, notes.read, outside.complain).look
    return Service(
        tasks=tasks,
        spawning=spawning,
        subagents=SubagentVerbs(records, supervisor),
        waiting=Waiting(journal, store, records, folders, plans.under_way),
        plans=plans,
        roots=RootRuns(hands, tasks, folders, SubmittedPlans(hands, plans, folders.project)),
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
    search = os.environ.get("PATH", os.defpath)
    ready = partial(require_ready, project=folders.project, variables=os.environ, search=search)
    types = partial(discover, folders.project)
    crew = Crew(types, lambda: missing(models_folder(os.environ)), _key_missing, ready)
    return Binder(folders, runtime, crew, in_container=contained, left=gateway.left, source=source)


def _key_missing(backend: ModelBackend) -> str:
    return provider_of(backend).lacks(os.environ)
