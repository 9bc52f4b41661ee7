"""What a child may ask of the steward: only what its contract grants it, and every try is told."""

from __future__ import annotations

from typing import Any

from retinue.app import App
from retinue.domain.errors import NotFound, Refused
from retinue.domain.subagent import Subagent
from retinue.service import Request
from retinue.steward.params import Params
from retinue.steward.rows import spawned_row, subagent_row
from retinue.wire import views
from retinue.wire.brief import parse_briefs, request_sha256
from retinue.wire.result import batch_to_json, result_to_json


async def call(app: App, caller: Subagent, verb: str, params: Params) -> Any:
    """The answer to a verb that this child may use.

    Raises:
        Refused: the verb is not for children, or not for this one. It is on record.
    """
    known = {
        "subagent.spawn": _spawn,
        "subagent.list": _list,
        "subagent.result": _result,
        "subagent.cancel": _cancel,
    }.get(verb)
    params.raw("task")  # whatever it says, a child has one task: its own
    if known is None:
        why = f"{verb[:40]} is not for subagents"
        app.service.spawning.deny(caller, why)
        raise Refused(why, code="delegation_disabled")
    return await known(app, caller, params)


async def _spawn(app: App, caller: Subagent, params: Params) -> Any:
    briefs = parse_briefs(params.raw("tasks"))
    wait = params.flag("wait")
    params.raw("cwd")
    request = Request(
        briefs=briefs,
        base=app.workspaces.workspace_of(caller),
        by="parent",
        parent=caller,
        key=params.text("key", ""),
        sha256=request_sha256(briefs),
        queue=params.flag("queue"),
    )
    params.done()
    if wait:
        return batch_to_json(await app.service.spawning.spawn_and_wait(caller.task, request))
    subagents = await app.service.spawning.spawn(caller.task, request)
    return {
        "success": True,
        "mode": "background",
        "subagents": [spawned_row(app, subagent) for subagent in subagents],
        "note": views.BACKGROUND_NOTE,
    }


async def _list(app: App, caller: Subagent, params: Params) -> Any:
    everyone = app.service.subagents.roll(caller.task, limit=params.count("limit", 50, 1000))
    params.done()
    own = [each for each in everyone if each.contract.delegated_by == caller.id]
    return [subagent_row(app, each) for each in own]


async def _result(app: App, caller: Subagent, params: Params) -> Any:
    child = _own(app, caller, params)
    return result_to_json(app.service.subagents.result(caller.task, child.id))


async def _cancel(app: App, caller: Subagent, params: Params) -> Any:
    reason = params.text("reason", "")
    child = _own(app, caller, params)
    result = await app.service.subagents.cancel(caller.task, child.id, by="parent", reason=reason)
    return {"agentInstance": child.id, "cancelled": True, "result": result_to_json(result)}


def _own(app: App, caller: Subagent, params: Params) -> Subagent:
    name = params.text("subagent")
    params.done()
    child = app.service.subagents.get(caller.task, name)
    if child.contract.delegated_by != caller.id:
        raise NotFound(f"{caller.id} has no subagent {name[:80]!a}", code="unknown_subagent")
    return child
