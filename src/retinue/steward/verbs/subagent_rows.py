"""Rows of subagents in responses, and warnings about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retinue.clock import get_timestamp
from retinue.core.brief import Brief
from retinue.core.ids import TaskId
from retinue.core.lifecycle import State
from retinue.core.subagent import Subagent
from retinue.formats import views_json
from retinue.formats.result_json import usage_to_json
from retinue.steward.app import App
from retinue.steward.task_service import SubagentList


def make_subagent_row(app: App, subagent: Subagent) -> dict[str, Any]:
    """Return the row of a subagent in lists."""
    # Rows of closed subagents are cached: they no longer change.
    if subagent.standing.state is State.CLOSED:
        key = (subagent.task, subagent.id)
        if key not in app.closed_rows:
            app.closed_rows[key] = _build_subagent_row(app, subagent)
        owner = subagent.contract.continues or subagent.id
        # Only the workspace may still be removed, so that is checked each time.
        gone = not app.folders.has_workspace(subagent.task, owner)
        return app.closed_rows[key] | ({"workspace_removed": True} if gone else {})
    return _build_subagent_row(app, subagent)


def _build_subagent_row(app: App, subagent: Subagent) -> dict[str, Any]:
    running = subagent.standing.state is State.RUNNING
    row = views_json.subagent_to_json(
        subagent,
        workspace=str(app.workspaces.find_workspace(subagent)),
        testimony=app.live_testimony.read_latest(subagent) if running else None,
        result=app.records.get_result(subagent),
        now=get_timestamp(),
    )
    if running and (usage := app.gateway.get_usage(subagent)) is not None:
        row["token_usage"] = usage_to_json(usage)
    if running and (waits := app.gateway.describe_wait(subagent)):
        row["waiting_for"] = waits
    # Between attempts it may wait for a node, and has no process meanwhile.
    on_node = running and subagent.contract.placement is not None
    between = on_node and not (subagent.standing.in_attempt or subagent.standing.blocked)
    if subagent.standing.state is State.CREATED or between:
        waits = app.supervisor.describe_wait(subagent)
        row |= {"waiting_for": waits, "waits_for": waits} if waits else {}
        if waits and between:
            row["status"] = "pending"
    return row


def list_rows(app: App, roll: SubagentList, *, page: bool) -> Any:
    """Return the rows; with `page`, also the total and the number shown."""
    rows = [make_subagent_row(app, each) for each in roll.subagents]
    return {"subagents": rows, "total": roll.total, "shown": len(rows)} if page else rows


def make_spawned_row(app: App, subagent: Subagent) -> dict[str, Any]:
    folder = app.workspaces.get_folder(subagent.task, subagent.id)
    return views_json.spawned_to_json(
        subagent,
        workspace=str(app.workspaces.find_workspace(subagent)),
        status_file=str(folder / "full_logs" / "status.json"),
    )


def describe_background_spawn(app: App, subagents: Sequence[Subagent]) -> dict[str, Any]:
    """Return the response to a spawn that does not wait."""
    return {
        "success": True,
        "mode": "background",
        "subagents": [make_spawned_row(app, subagent) for subagent in subagents],
        "note": views_json.BACKGROUND_NOTE,
    }


def collect_warnings(app: App, task: TaskId, *further: str) -> dict[str, Any]:
    """Return warnings about the task's configuration; empty if there are none."""
    return views_json.warnings_to_json([*further, *app.spawning.list_unmet(task)])


def collect_spawn_warnings(
    app: App, task: TaskId, admitted: Sequence[Subagent], briefs: Sequence[Brief]
) -> dict[str, Any]:
    """Return warnings about a spawn call; empty if there are none.

    Args:
        admitted: the subagents as admitted. One that had ended belongs to an earlier call.
        briefs: the briefs of the call, in the same order.
    """
    said: list[str] = []
    for subagent, brief in zip(admitted, briefs, strict=True):
        if subagent.standing.settled and not subagent.standing.blocked:
            said.append(views_json.format_ended_before(subagent))
        elif other := views_json.format_other_timeout(subagent, brief.timeout_seconds):
            said.append(other)
    return collect_warnings(app, task, *said)


def collect_timeout_warning(
    goes_on: Subagent, message: str, asked_seconds: float | None
) -> dict[str, Any]:
    """Return a warning if a continued subagent has not the requested time limit.

    Args:
        message: the message it was continued with.
    """
    # A successor has the message at the end of its brief; a blocked subagent keeps its brief.
    was_blocked = not goes_on.contract.step.description.endswith(f"\n\n{message}")
    said = views_json.format_other_timeout(goes_on, asked_seconds, was_blocked=was_blocked)
    return views_json.warnings_to_json([said] if said else [])
