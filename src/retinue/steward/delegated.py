"""What a child may ask of the steward: only what its contract grants it, and tries are told."""

from __future__ import annotations

import base64
from hashlib import blake2b
from typing import Any

from retinue.app import App
from retinue.domain.errors import BadInput, Refused
from retinue.domain.plan import unheld
from retinue.domain.subagent import Subagent
from retinue.steward.params import Params, texts_of
from retinue.steward.parents import PARENTS, ParentVerb, one, spawn
from retinue.steward.rows import subagent_row
from retinue.steward.telling import Parent
from retinue.wire.plan import plan_from_json, plan_to_json
from retinue.wire.result import batch_to_json, result_to_json
from retinue.wire.views import warnings_to_json

MAY = "spawn --wait, list, result and cancel are, for subagents of its own; so is 'retinue mcp'"
LONG = 57  # what is left of a consumer's name


async def call(app: App, caller: Subagent, verb: str, params: Params) -> Any:
    """The answer to a verb that this child may use.

    Raises:
        Refused: the verb is not for children, or not for this one. It is on record.
    """
    known = FOR_CHILDREN.get(verb)
    for name in ("task", "consumer"):
        params.raw(name)  # whatever they say, a child is itself, and has one task: its own
    if known is None:
        why = f"{verb[:40]} is not for subagents"
        app.service.spawning.deny(caller, why)
        raise Refused(why, code="delegation_disabled", hint=MAY)
    return await known(app, _parent(caller, params), params)


def _parent(child: Subagent, params: Params) -> Parent:
    """Raises:
    BadInput: somebody is named who is not of its team.
    """
    member, absent = params.text("member", ""), texts_of(params, "absent")
    team = [name for name, _ in child.contract.named_members(child.id)]
    for name in (*filter(None, [member]), *absent):
        if name not in team:
            raise BadInput(f"{child.id} has no member {name[:80]!a}", code="invalid_request")
    return Parent(
        task=child.task,
        consumer=_consumer(child),
        by="parent",
        child=child,
        member=member,
        absent=frozenset(absent),
    )


def _consumer(child: Subagent) -> str:
    """The name under which a child is told of the ends of its own: each of them once."""
    name = str(child.id)
    if len(name) > LONG:  # others may begin like it
        name = f"{name[: LONG - 17]}-{blake2b(name.encode(), digest_size=8).hexdigest()}"
    return f"parent-{name}"


async def _list(app: App, parent: Parent, params: Params) -> Any:
    everyone = app.service.subagents.roll(parent.task, limit=params.count("limit", 50, 1000))
    params.done()
    own = [each for each in everyone if parent.owns(each) and parent.sent(each)]
    return [subagent_row(app, each) for each in own]


async def _result(app: App, parent: Parent, params: Params) -> Any:
    subagent = one(app, parent, params)
    return result_to_json(app.service.subagents.result(parent.task, subagent.id))


async def _cancel(app: App, parent: Parent, params: Params) -> Any:
    reason, kill = params.text("reason", ""), params.flag("kill")
    subagent = one(app, parent, params)
    result = await app.service.subagents.cancel(
        parent.task, subagent.id, by=parent.by, reason=reason, kill=kill
    )
    return {"agentInstance": subagent.id, "cancelled": True, "result": result_to_json(result)}


async def _file(app: App, parent: Parent, params: Params) -> Any:
    """One file out of the workspace of a subagent of its own."""
    path = params.text("path")
    data = app.taking.file(one(app, parent, params), path)
    return {"content": base64.b64encode(data).decode()}


async def _files(app: App, parent: Parent, params: Params) -> Any:
    inside = params.text("path", "")
    return app.taking.files(one(app, parent, params), inside)


async def _plan(app: App, parent: Parent, params: Params) -> Any:
    """A whole plan, carried out for it in its own task; the answer comes with its end."""
    given, child = params.raw("plan"), parent.child
    params.done()
    assert child is not None, "only children have this verb"
    submitted, policy = app.service.roots.submitted, app.folders.config(parent.task)
    try:
        plan = plan_from_json(given)
        document = plan_to_json(plan)
        end = await submitted.carry_out(child, plan, document, policy, parent.member)
    except (BadInput, Refused) as error:
        app.service.spawning.deny(child, error.message)
        raise
    for subagent, _ in end.parts:
        app.service.waiting.tell(subagent, parent.consumer)
    batch = batch_to_json([result for _, result in end.parts if result is not None])
    whole = end.details.get("outcome") == "succeeded"
    return batch | end.details | {"success": whole} | warnings_to_json(unheld(plan))


FOR_CHILDREN: dict[str, ParentVerb] = {
    **PARENTS,
    "parent.file": _file,
    "parent.files": _files,
    "parent.plan": _plan,
    "subagent.spawn": spawn,
    "subagent.list": _list,
    "subagent.result": _result,
    "subagent.cancel": _cancel,
}
