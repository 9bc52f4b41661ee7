"""Garbage collection in a root: which closed tasks are swept or deleted, and what that frees."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from retinue.core.errors import Refused
from retinue.core.subagent import Task
from retinue.processes import finish_work
from retinue.runtime import overlay_probe
from retinue.steward.app import App
from retinue.steward.task_deletion import delete_task, require_deletable
from retinue.workspaces.gc import (
    Swept,
    list_sweepable,
    measure_tree,
    sweep,
    sweep_repository,
)
from retinue.workspaces.git.shared_checkouts import set_aside
from retinue.workspaces.git.task_repository import REPOSITORY
from retinue.workspaces.removal import is_stale, remove_tree


@dataclass(frozen=True, kw_only=True)
class CollectRequest:
    """What a collection may remove."""

    force: bool = False  # also work that was never joined
    dry_run: bool = False  # report only
    tasks: bool = False  # delete whole tasks
    older_than_seconds: float | None = None  # since the task's last change
    keep: int = 0  # this many of the newest tasks are left alone


async def collect(app: App, request: CollectRequest) -> dict[str, Any]:
    """Remove what closed tasks no longer need; return what was removed, kept and freed.

    Only closed tasks are touched: they take no more work, so this is safe beside running ones.
    """
    chosen = _select_tasks(app, request)
    if request.tasks:
        removed, kept = await _delete_tasks(app, chosen, request)
    else:
        removed, kept = await _sweep_tasks(app, chosen, request)
    return {
        "removed": removed,
        "kept": kept,
        "bytes": sum(each["bytes"] for each in removed),
        "dry_run": request.dry_run,
    }


def _select_tasks(app: App, request: CollectRequest) -> list[Task]:
    """Return the closed tasks that are old enough and not among the newest ones."""
    found = app.records.list_tasks(-1)[request.keep :]
    closed = [task for task in found if task.state == "closed"]
    if request.older_than_seconds is None:
        return closed
    limit = datetime.now(UTC) - timedelta(seconds=request.older_than_seconds)
    return [task for task in closed if datetime.fromisoformat(task.updated_at) < limit]


Rows = list[dict[str, Any]]


async def _delete_tasks(app: App, tasks: list[Task], request: CollectRequest) -> tuple[Rows, Rows]:
    removed: Rows = []
    kept: Rows = []
    for task in tasks:
        folder = app.folders.get_folder(task.id)
        about = {"task": task.id, "subagent": "", "path": str(folder)}
        try:
            if request.dry_run:
                require_deletable(app, task, force=request.force)
                freed = await asyncio.to_thread(measure_tree, folder)
            else:
                done = await delete_task(app, task, by="user", force=request.force)
                freed = done["bytes"]
        except Refused as error:
            kept.append(about | {"reason": error.message})
        else:
            removed.append(about | {"bytes": freed})
    return removed, kept


async def _sweep_tasks(app: App, tasks: list[Task], request: CollectRequest) -> tuple[Rows, Rows]:
    removed: Rows = []
    kept: Rows = []
    # One collection at a time; deletions run in threads and always finish, even if the caller
    # disconnects.
    async with app.collecting:
        for task in tasks:
            for name, folder, force in _list_folders(app, task, request.force):
                sweeping = partial(_sweep_folder, folder, force=force, dry_run=request.dry_run)
                went, stayed = await finish_work(asyncio.to_thread(sweeping))
                about = {"task": task.id, "subagent": name}
                removed += [about | {"path": str(path), "bytes": size} for path, size in went]
                kept += [about | {"path": str(path), "reason": why} for path, why in stayed]
        if not request.dry_run:
            removed += await _remove_ownerless(app.settings.root)
    return removed, kept


def _list_folders(app: App, task: Task, force: bool) -> Iterator[tuple[str, Path, bool]]:
    """Yield the folders of a closed task: one per subagent, and its repository."""
    for subagent in app.records.list_newest(task.id, task.next_step):
        # Joined output exists elsewhere, so its workspace can go without --force.
        joined = subagent.standing.close_reason in ("merged", "copied")
        yield subagent.id, app.workspaces.get_folder(task.id, subagent.id), force or joined
    yield "", app.folders.get_folder(task.id) / REPOSITORY, force


def _sweep_folder(
    folder: Path, *, force: bool, dry_run: bool
) -> tuple[list[tuple[Path, int]], list[tuple[Path, str]]]:
    """Sweep a folder, or only say what a sweep would do; return sizes and reasons."""
    repository = folder.name == REPOSITORY
    planned: Swept = ([], []) if repository else list_sweepable(folder, force=force)
    # Measured before the removal, for the report.
    sizes = {path: measure_tree(path) for path in planned[0]}
    if dry_run:
        return list(sizes.items()), planned[1]
    went, stayed = sweep_repository(folder) if repository else sweep(folder, force=force)
    return [(path, sizes.get(path, 0)) for path in went], stayed


async def _remove_ownerless(root: Path) -> Rows:
    """Remove shared checkouts that no workspace needs, and leftovers of probes."""
    removed: Rows = []
    # Repeat: removing one shared checkout can free others.
    while unneeded := _list_ownerless(root):
        for place, now in unneeded:
            size = await asyncio.to_thread(measure_tree, now)
            await finish_work(asyncio.to_thread(remove_tree, now))
            removed.append({"task": "", "subagent": "", "path": str(place), "bytes": size})
    return removed


def _list_ownerless(root: Path) -> list[tuple[Path, Path]]:
    """Return unneeded folders that belong to no task, each as its old and its present path."""
    trials = [each for each in root.glob(f"{overlay_probe.PREFIX}*") if is_stale(each)]
    return [*set_aside(root), *((each, each) for each in trials)]
