"""Deletion of closed tasks: rows and folder go, a record of the deletion stays.

The database is append-only, with one exception that its triggers know: rows of a task whose
deletion is being recorded in the same transaction. The folder is removed afterwards. If the
steward is killed in between, the next one finishes the removal when it opens the root (`open_app`).
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from retinue.clock import get_timestamp
from retinue.core.errors import Refused
from retinue.core.subagent import Subagent, Task
from retinue.processes import finish_work
from retinue.steward.app import App
from retinue.store.database import Database
from retinue.workspaces.gc import is_occupied, measure_tree, sweep
from retinue.workspaces.removal import remove_tree

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
        Refused: the task is open, or holds work that was not joined and `force` is not set.
        StorageFailed: the database refused (nothing was deleted), or a file cannot be removed.
    """
    async with app.collecting:
        subagents = require_deletable(app, task, force=force)
        folder = app.folders.get_folder(task.id)
        freed = await asyncio.to_thread(measure_tree, folder)
        # From here on the deletion is carried to its end, even if the caller disconnects.
        _delete_rows(app.database, task, app, by=by)
        app.forget_task(task.id)
        await finish_work(asyncio.to_thread(_remove_folder, app, folder, subagents))
        app.journal.wake(task.id)
    return {"task_id": task.id, "deleted": True, "subagents": len(subagents), "bytes": freed}


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
