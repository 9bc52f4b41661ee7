"""Garbage collection in a root, and deletion of tasks: what is removed, and what that frees."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from retinue.clock import get_timestamp
from retinue.core.errors import NotFound, Refused
from retinue.core.subagent import Subagent, Task
from retinue.processes import finish_work
from retinue.runtime import probes
from retinue.steward.app import App
from retinue.store.database import Database
from retinue.workspaces.folder_cleanup import (
    Swept,
    is_occupied,
    list_sweepable,
    measure_tree,
    sweep,
    sweep_repository,
)
from retinue.workspaces.git.shared_checkouts import set_aside
from retinue.workspaces.git.task_repository import REPOSITORY
from retinue.workspaces.owned_files import is_stale, remove_tree

# In the order that foreign keys demand.
PURGES = (
    "purge_ledger",
    "purge_results",
    "purge_attempts",
    "purge_gates",
    "purge_deliveries",
    "purge_spawn_keys",
    "purge_events",
    "purge_subagents",
    "purge_runs",
    "purge_task",
)
MOST_NAMED = 3


async def delete_task(app: App, task: Task, *, by: str, force: bool) -> dict[str, Any]:
    """Delete a closed task with its folder; return what was freed.

    Raises:
        NotFound: it was deleted meanwhile.
        Refused: the task is open, or holds work that was not joined and `force` is not set.
        StorageFailed: the database refused (nothing was deleted), or a file cannot be removed.
    """
    async with app.collection_lock:
        task = _reload_task(app, task)
        subagents = require_deletable(app, task, force=force)
        folder = app.folders.get_folder(task.id)
        freed = await asyncio.to_thread(measure_tree, folder)
        # From here on the deletion is carried to its end, even if the caller disconnects.
        _delete_rows(app.database, task, app, by=by)
        app.forget_task(task.id)
        await finish_work(asyncio.to_thread(_remove_folder, app, folder, subagents))
        app.journal.wake(task.id)
    return {"task_id": task.id, "deleted": True, "subagents": len(subagents), "bytes": freed}


def _reload_task(app: App, task: Task) -> Task:
    """Return the record as it is now; call it with `app.collection_lock` held.

    Raises:
        NotFound: the task was deleted. Its id may belong to a new task, which stays.
    """
    now = app.records.get_task(task.id)
    if now.created_at != task.created_at:
        raise NotFound(
            f"task {task.id} was deleted, and another one has its id now",
            code="unknown_task",
            hint="'retinue task show' describes the new one",
        )
    return now


def require_deletable(app: App, task: Task, *, force: bool) -> list[Subagent]:
    """Return the subagents of a task that may be deleted.

    Raises:
        Refused: the task is open, or holds work that was not joined and `force` is not set.
    """
    if task.state != "closed":
        raise Refused(
            f"task {task.id} is open",
            code="task_open",
            hint=f"'retinue task close {task.id}' closes it",
        )
    subagents = app.records.list_newest(task.id, task.next_step)
    left = [each.id for each in subagents if _holds_work(app, each)] if not force else []
    if left:
        more = f" and {len(left) - MOST_NAMED} more" if len(left) > MOST_NAMED else ""
        raise Refused(
            f"task {task.id} has files that were not merged anywhere: "
            f"{', '.join(left[:MOST_NAMED])}{more}",
            code="unmerged_work",
            hint="--force deletes them too; 'retinue subagent show' names each workspace",
        )
    return subagents


def _holds_work(app: App, subagent: Subagent) -> bool:
    """Return whether a workspace has files that exist nowhere else."""
    if subagent.standing.close_reason in ("merged", "copied"):
        return False
    workspace = app.workspaces.get_folder(subagent.task, subagent.id) / "workspace"
    return is_occupied(workspace)


def _delete_rows(database: Database, task: Task, app: App, *, by: str) -> None:
    """Delete every row of the task and record the deletion, in one transaction."""
    totals = app.records.sum_totals(task.id)
    with database.transaction(durable=True):
        database.run(
            "insert_deletion",
            task_id=task.id,
            title=task.title,
            created_at=task.created_at,
            deleted_at=get_timestamp(),
            by=by,
            subagents=app.records.count(task.id),
            events=task.last_seq,
            input_tokens=totals.input_tokens + totals.root_input_tokens,
            output_tokens=totals.output_tokens + totals.root_output_tokens,
            estimated_cost=totals.estimated_cost + totals.root_cost,
        )
        for purge in PURGES:
            database.run(purge, task_id=task.id)
        database.run("complete_deletion", task_id=task.id)


def _remove_folder(app: App, folder: Path, subagents: list[Subagent]) -> None:
    for subagent in subagents:
        # Lets go of shared checkouts and unlocks what a child locked.
        sweep(app.workspaces.get_folder(subagent.task, subagent.id), force=True)
    remove_tree(folder)


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
    if request.tasks:
        removed, kept = await _delete_tasks(app, request)
    else:
        removed, kept = await _sweep_tasks(app, request)
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
    # Ages are compared in seconds: a time many thousand years ago has no date.
    changed_before = time.time() - request.older_than_seconds
    return [
        task
        for task in closed
        if datetime.fromisoformat(task.updated_at).timestamp() < changed_before
    ]


Rows = list[dict[str, Any]]


async def _delete_tasks(app: App, request: CollectRequest) -> tuple[Rows, Rows]:
    removed: Rows = []
    kept: Rows = []
    for task in _select_tasks(app, request):
        folder = app.folders.get_folder(task.id)
        about = {"task": task.id, "subagent": "", "path": str(folder)}
        try:
            if request.dry_run:
                require_deletable(app, task, force=request.force)
                freed = await asyncio.to_thread(measure_tree, folder)
            else:
                done = await delete_task(app, task, by="user", force=request.force)
                freed = done["bytes"]
        except NotFound:
            continue  # another call deleted it
        except Refused as error:
            kept.append(about | {"reason": error.message})
        else:
            removed.append(about | {"bytes": freed})
    return removed, kept


async def _sweep_tasks(app: App, request: CollectRequest) -> tuple[Rows, Rows]:
    removed: Rows = []
    kept: Rows = []
    # One collection at a time; deletions run in threads and always finish, even if the caller
    # disconnects.
    async with app.collection_lock:
        # Not before: until then, a task may be deleted and another one get its id.
        for task in _select_tasks(app, request):
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
    trials = [each for each in root.glob(f"{probes.FOLDER_PREFIX}*") if is_stale(each)]
    return [*set_aside(root), *((each, each) for each in trials)]
