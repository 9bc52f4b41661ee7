"""What lists show of a subagent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retinue.app import App
from retinue.clock import now
from retinue.domain.brief import Brief
from retinue.domain.ids import TaskId
from retinue.domain.lifecycle import State
from retinue.domain.subagent import Subagent
from retinue.wire import views
from retinue.wire.result import usage_to_json


def subagent_row(app: App, subagent: Subagent) -> dict[str, Any]:
    """A row of the list. That of a closed one is made once: nothing can change it any more."""
    if subagent.standing.state is State.CLOSED:
        key = (subagent.task, subagent.id)
        if key not in app.closed_rows:
            app.closed_rows[key] = _subagent_row(app, subagent)
        return dict(app.closed_rows[key])
    return _subagent_row(app, subagent)


def _subagent_row(app: App, subagent: Subagent) -> dict[str, Any]:
    running = subagent.standing.state is State.RUNNING
    row = views.subagent_to_json(
        subagent,
        workspace=str(app.workspaces.workspace_of(subagent)),
        testimony=app.live.of(subagent) if running else None,
        result=app.records.result(subagent),
        now=now(),
    )
    if running and (usage := app.gateway.usage(subagent)) is not None:
        row["token_usage"] = usage_to_json(usage)
    if running and (waits := app.gateway.waits_for(subagent)):
        row["waiting_for"] = waits
    if subagent.standing.state is State.CREATED:
        waits = app.service.supervisor.turns.waits_for(subagent)
        row |= {"waiting_for": waits} if waits else {}
    return row


def spawned_row(app: App, subagent: Subagent) -> dict[str, Any]:
    folder = app.workspaces.folder_of(subagent.task, subagent.id)
    return views.spawned_to_json(
        subagent,
        workspace=str(app.workspaces.workspace_of(subagent)),
        status_file=str(folder / "full_logs" / "status.json"),
    )


def unmet(app: App, task: TaskId, *further: str) -> dict[str, Any]:
    """What whoever configured the task should hear, where there is anything."""
    return views.warnings_to_json([*further, *app.service.spawning.unmet(task)])


def remarks(
    app: App, task: TaskId, admitted: Sequence[Subagent], briefs: Sequence[Brief]
) -> dict[str, Any]:
    """What whoever spawns should hear of the call as a whole, where there is anything.

    Args:
        admitted: its subagents as they stood then: one that had ended belongs to an earlier call.
        briefs: what was asked for, in the same order.
    """
    said: list[str] = []
    for subagent, brief in zip(admitted, briefs, strict=True):
        if subagent.standing.settled and not subagent.standing.blocked:
            said.append(views.ended_before(subagent))
        elif other := views.other_time(subagent, brief.timeout_seconds):
            said.append(other)
    return unmet(app, task, *said)


def other_time(goes_on: Subagent, name: str, asked_seconds: float | None) -> dict[str, Any]:
    """What whoever continues a subagent should hear, where that has not the time asked for.

    Args:
        name: of the subagent that was to be continued.
    """
    was_blocked = goes_on.id.lower() == name.lower()
    said = views.other_time(goes_on, asked_seconds, was_blocked=was_blocked)
    return views.warnings_to_json([said] if said else [])


def begun(app: App, subagents: Sequence[Subagent]) -> dict[str, Any]:
    """The answer to a call that did not wait."""
    return {
        "success": True,
        "mode": "background",
        "subagents": [spawned_row(app, subagent) for subagent in subagents],
        "note": views.BACKGROUND_NOTE,
    }
