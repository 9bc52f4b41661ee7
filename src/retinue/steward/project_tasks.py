"""Task folders of a project, their configurations, and context paths that may be lent."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from retinue.core.brief import Brief
from retinue.core.contract import ISOLATED_PLACE, Context, find_original_path
from retinue.core.default_models import list_keyed_backends, select_default_backends
from retinue.core.subagent import Subagent
from retinue.core.task_config import ISOLATED, TaskConfig
from retinue.runtime.sandbox_view import maps_owners
from retinue.store.event_log import EventLogWriter
from retinue.store.projections import TaskFolders
from retinue.workspaces.contexts import (
    ContextScope,
    Lendable,
    check_contexts,
    describe_replacement,
    list_private,
    list_recorded,
    resolve_base,
    search_again,
)


class ProjectTasks(TaskFolders):
    """The `Tasks` port: task folders and configurations, and context paths that may be lent."""

    def __init__(self, tasks: Path, exporter: EventLogWriter, project: Path) -> None:
        super().__init__(tasks, exporter, _add_default_backends)
        self.tasks = tasks
        self.project = project

    def resolve_contexts(
        self, brief: Brief, base: Path, config: TaskConfig, parent: Subagent | None
    ) -> Context:
        """Return the checked context of a brief.

        A user may lend paths of the project, the caller's folder, the root and the configured
        folders. A subagent may lend only what `_list_lendable` names. The configuration's standing
        paths are lent to every subagent, under the same rules.
        """
        standing = [str(self.project / path) for path in config.context_paths]
        if not brief.context_paths and not brief.context_files and not standing:
            return Context(base=os.path.realpath(base))
        root = self.tasks.parent.resolve()
        if parent is None:
            base = resolve_base(base, root)
            roots = (self.project, base, root, *map(Path, config.context_roots))
            allowed = [
                Lendable(path=path) for path in dict.fromkeys(str(r.resolve()) for r in roots)
            ]
            return check_contexts(
                brief.context_paths,
                brief.context_files,
                ContextScope(base=base, allowed=allowed, root=root),
                standing,
            )
        # A subagent names paths as it sees them; check the originals.
        given = partial(self._find_original, root, parent)
        lent = [given(os.path.join(base, path)) if path else "" for path in brief.context_paths]
        return check_contexts(
            lent,
            [given(os.path.join(base, path)) if path else "" for path in brief.context_files],
            ContextScope(
                base=base,
                allowed=list(_list_lendable(parent, root)),
                root=root,
                delegated=True,
                other_user=os.geteuid() == 0 and parent.contract.boundary.mode == ISOLATED,
                hidden=parent.contract.context.hidden,
            ),
            standing,
        )

    def rescan_context(self, context: Context, folders: Sequence[str]) -> Context:
        return search_again(context, folders)

    def list_unreadable(self, context: Context) -> list[str]:
        return [] if not context.paths or maps_owners() else list_private(context)

    def _find_original(self, root: Path, parent: Subagent, path: str) -> str:
        """Return the original of a path inside a subagent's context folder, else the path."""
        tasks = Path("tasks", parent.task, "agents", parent.id, "context")
        for place in (ISOLATED_PLACE, str(root / tasks), str(self.tasks.parent / tasks)):
            if path.startswith(f"{place}/"):
                inside = os.path.normpath(path.removeprefix(f"{place}/"))
                return find_original_path(parent.contract.context, inside) or path
        return path


def _add_default_backends(config: TaskConfig) -> TaskConfig:
    """Return the configuration with default backends for a crew that names none."""
    return replace(
        config,
        fallback=select_default_backends(os.environ),
        keyed=list_keyed_backends(os.environ),
    )


def _list_lendable(parent: Subagent, root: Path) -> Iterator[Lendable]:
    """Yield what a subagent may lend: its workspace and context; a root team, also its task."""
    task = root / "tasks" / parent.task
    workspace = task / "agents" / (parent.contract.continues or parent.id) / "workspace"
    # Security: skip a path that was replaced since it was recorded, as by a symbolic link.
    if not describe_replacement(str(workspace), None, root):
        status = workspace.lstat()
        yield Lendable(path=str(workspace), owner=(status.st_uid, status.st_gid))
    if parent.contract.is_root:
        yield Lendable(path=str(task))
    for path, identity in list_recorded(parent.contract.context):
        if not describe_replacement(path, identity, root):
            status = os.lstat(path)
            owner = (status.st_uid, status.st_gid)
            if identity is not None:
                owner = (identity.uid, identity.gid)
            yield Lendable(path=path, owner=owner)
