"""What a child may ask of the steward: only what its contract grants it, and tries are told."""

from __future__ import annotations

import asyncio
import base64
from functools import partial
from typing import Any

from retinue.app import App
from retinue.domain.errors import BadInput, NotFound, Refused
from retinue.domain.subagent import Subagent
from retinue.service import Request
from retinue.steward import parents
from retinue.steward.params import Params
from retinue.steward.rows import begun, remarks, subagent_row
from retinue.wire.brief import parse_briefs, request_sha256
from retinue.wire.plan import plan_from_json, plan_to_json
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
        **AS_PARENT,
    }.get(verb)
    for name in ("task", "consumer", "by"):
        params.raw(name)  # whatever they say, a child is itself, and has one task: its own
    if known is None:
        why = f"{verb[:40]} is not for subagents"
        app.service.spawning.deny(caller, why)
        raise Refused(why, code="delegation_disabled")
    return await known(app, caller, params)


async def _spawn(app: App, caller: Subagent, params: Params) -> Any:
    wait, request = params.flag("wait"), _request(app, caller, params)
    if wait:
        return batch_to_json(await app.service.spawning.spawn_and_wait(caller.task, request))
    return begun(app, await app.service.spawning.spawn(caller.task, request))


def _request(app: App, caller: Subagent, params: Params, *, again: bool = False) -> Request:
    briefs = parse_briefs(params.raw("tasks"))
    for name in ("cwd", "caller"):
        params.raw(name)
    request = Request(
        briefs=briefs,
        base=app.workspaces.workspace_of(caller),
        by="parent",
        parent=caller,
        key=params.text("key", ""),
        sha256=request_sha256(briefs),
        queue=params.flag("queue"),
        again=again,
    )
    params.done()
    return request


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


async def _spawn_told(app: App, caller: Subagent, params: Params) -> Any:
    wait, request = params.flag("wait"), _request(app, caller, params, again=True)
    if not wait:
        parents.require_background(app, caller.task)
    subagents = await app.service.spawning.admit(caller.task, request)
    heard = remarks(app, caller.task, subagents)
    if not wait:
        return begun(app, await app.service.spawning.up(subagents)) | heard
    results = await parents.attended(app, params, subagents, consumer_of(caller))
    return batch_to_json(results) | heard


async def _continue(app: App, caller: Subagent, params: Params) -> Any:
    message, timeout = params.text("message"), params.number("timeout_seconds")
    again = params.flag("again")
    child, spawning = _own(app, caller, params), app.service.spawning
    taken_up = parents.taken_up(app, child, message) if again else None
    if taken_up is None:
        taken_up = await spawning.continue_(
            caller.task, child.id, message, by="parent", timeout=timeout
        )
    child = taken_up
    (result,) = await parents.attended(app, params, [child], consumer_of(caller))
    return result_to_json(result)


async def _wait(app: App, caller: Subagent, params: Params) -> Any:
    """The next end among its own; it never hears of others."""
    timeout = params.number("timeout_seconds")
    params.done()
    consumer, loop = consumer_of(caller), asyncio.get_running_loop()
    end = None if timeout is None else loop.time() + timeout
    while True:
        left = None if end is None else max(0.0, end - loop.time())
        waiting = app.service.waiting
        settled = await waiting.wait_any(caller.task, timeout=left, consumer=consumer)
        if settled.contract.delegated_by == caller.id:
            params.if_lost = partial(waiting.undeliver, settled, consumer)
            return parents.told(app, settled)


async def _take(app: App, caller: Subagent, params: Params) -> Any:
    most = params.count("limit", parents.MOST_AT_ONCE, parents.MOST_AT_ONCE)
    but = parents.excepted(params)
    params.done()
    taken = app.service.waiting.take(caller.task, consumer_of(caller), most, but=but)
    own = [each for each in taken if each.contract.delegated_by == caller.id]
    return [parents.told(app, each) for each in own]


async def _fetch(app: App, caller: Subagent, params: Params) -> Any:
    child = _own(app, caller, params)
    if not child.standing.settled:
        return subagent_row(app, child) | {"result": None}
    app.service.waiting.tell(child, consumer_of(caller))
    return parents.told(app, child)


async def _take_back(app: App, caller: Subagent, params: Params) -> Any:
    names = parents.ids(params, "subagents")
    params.done()
    lost = [_child(app, caller, name) for name in names]
    parents.tell_again(app, lost, consumer_of(caller))


async def _cancel_told(app: App, caller: Subagent, params: Params) -> Any:
    reason, again = params.text("reason", ""), params.flag("again")
    child = _own(app, caller, params)
    if not (again and child.standing.settled):
        await app.service.subagents.cancel(caller.task, child.id, by="parent", reason=reason)
    child = app.service.subagents.get(caller.task, child.id)
    app.service.waiting.tell(child, consumer_of(caller))
    return parents.told(app, child)


async def _look(app: App, caller: Subagent, params: Params) -> Any:
    return subagent_row(app, _own(app, caller, params))


async def _file(app: App, caller: Subagent, params: Params) -> Any:
    """One file out of the workspace of a subagent of its own."""
    path = params.text("path")
    data = app.taking.file(_own(app, caller, params), path)
    return {"content": base64.b64encode(data).decode()}


async def _files(app: App, caller: Subagent, params: Params) -> Any:
    return app.taking.files(_own(app, caller, params))


async def _plan(app: App, caller: Subagent, params: Params) -> Any:
    """A whole plan, carried out for it in its own task; the answer comes with its end."""
    given = params.raw("plan")
    params.done()
    submitted, policy = app.service.roots.submitted, app.folders.config(caller.task)
    try:
        plan = plan_from_json(given)
        end = await submitted.carry_out(caller, plan, plan_to_json(plan), policy)
    except (BadInput, Refused) as error:
        app.service.spawning.deny(caller, error.message)
        raise
    for subagent, _ in end.parts:
        app.service.waiting.tell(subagent, consumer_of(caller))
    batch = batch_to_json([result for _, result in end.parts if result is not None])
    whole = end.details.get("outcome") == "succeeded"
    return batch | end.details | {"success": whole}


AS_PARENT: dict[str, Any] = {
    "parent.spawn": _spawn_told,
    "parent.continue": _continue,
    "parent.wait": _wait,
    "parent.take": _take,
    "parent.take_back": _take_back,
    "parent.result": _fetch,
    "parent.cancel": _cancel_told,
    "parent.look": _look,
    "parent.file": _file,
    "parent.files": _files,
    "parent.plan": _plan,
}


def consumer_of(caller: Subagent) -> str:
    """The name under which a subagent is told of the ends of its own."""
    return f"parent-{caller.id}"[:64]


def _own(app: App, caller: Subagent, params: Params) -> Subagent:
    name = params.text("subagent")
    params.done()
    return _child(app, caller, name)


def _child(app: App, caller: Subagent, name: str) -> Subagent:
    child = app.service.subagents.get(caller.task, name)
    if child.contract.delegated_by != caller.id:
        raise NotFound(f"{caller.id} has no subagent {name[:80]!a}", code="unknown_subagent")
    return child
