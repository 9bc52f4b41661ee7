"""What a child may ask of the steward: only what its contract grants it, and tries are told."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import Any

from retinue.app import App
from retinue.domain.errors import BadInput, NotFound, Refused
from retinue.domain.ids import TaskId
from retinue.domain.plan import unheld
from retinue.domain.subagent import Subagent
from retinue.service import Request
from retinue.service.waiting import Mine
from retinue.steward import parents
from retinue.steward.params import LARGEST, Params, texts_of
from retinue.steward.rows import begun, other_time, remarks, subagent_row
from retinue.wire.brief import parse_briefs, request_sha256
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
    for name in ("task", "consumer", "by"):
        params.raw(name)  # whatever they say, a child is itself, and has one task: its own
    if known is None:
        why = f"{verb[:40]} is not for subagents"
        app.service.spawning.deny(caller, why)
        raise Refused(why, code="delegation_disabled", hint=MAY)
    return await known(app, _asking(caller, params), params)


@dataclass(frozen=True, kw_only=True)
class Asking:
    """A child that asks. Which of its team does it says itself, and only its team is concerned."""

    child: Subagent
    member: str = ""  # empty: nobody in particular, as of a command
    absent: frozenset[str] = frozenset()  # who will not ask any more, and for whom it does

    @property
    def task(self) -> TaskId:
        return self.child.task

    @property
    def consumer(self) -> str:
        """The name under which a child is told of the ends of its own: each of them once."""
        name = str(self.child.id)
        if len(name) > LONG:  # others may begin like it
            name = f"{name[: LONG - 17]}-{blake2b(name.encode(), digest_size=8).hexdigest()}"
        return f"parent-{name}"

    def has(self, other: Subagent) -> bool:
        """Whether it is a subagent of this child."""
        return other.contract.delegated_by == self.child.id

    def sent(self, other: Subagent) -> bool:
        """Whether this member is the one to be told of it."""
        sender = other.contract.sent_by
        return not self.member or not sender or sender in (self.member, *self.absent)

    @property
    def mine(self) -> Mine | None:
        """Which ends it is given: those of strangers, too, which it then passes over for good."""
        alone = len(self.child.contract.named_members(self.child.id)) < 2
        return None if alone else lambda each: not self.has(each) or self.sent(each)


def _asking(child: Subagent, params: Params) -> Asking:
    """Raises:
    BadInput: somebody is named who is not of its team.
    """
    member, absent = params.text("member", ""), texts_of(params, "absent")
    team = [name for name, _ in child.contract.named_members(child.id)]
    for name in (*filter(None, [member]), *absent):
        if name not in team:
            raise BadInput(f"{child.id} has no member {name[:80]!a}", code="invalid_request")
    return Asking(child=child, member=member, absent=frozenset(absent))


def _request(app: App, caller: Asking, params: Params, *, background: bool) -> Request:
    briefs = parse_briefs(params.raw("tasks"))
    for name in ("cwd", "caller"):
        params.raw(name)
    request = Request(
        briefs=briefs,
        base=app.workspaces.workspace_of(caller.child),
        by="parent",
        parent=caller.child,
        member=caller.member,
        key=params.text("key", ""),
        sha256=request_sha256(briefs),
        queue=params.flag("queue"),
        again=True,
        background=background,
    )
    params.done()
    return request


async def _list(app: App, caller: Asking, params: Params) -> Any:
    everyone = app.service.subagents.roll(caller.task, limit=params.count("limit", 50, 1000))
    params.done()
    own = [each for each in everyone if caller.has(each) and caller.sent(each)]
    return [subagent_row(app, each) for each in own]


async def _result(app: App, caller: Asking, params: Params) -> Any:
    child = _own(app, caller, params)
    return result_to_json(app.service.subagents.result(caller.task, child.id))


async def _cancel(app: App, caller: Asking, params: Params) -> Any:
    reason, kill = params.text("reason", ""), params.flag("kill")
    child = _own(app, caller, params)
    result = await app.service.subagents.cancel(
        caller.task, child.id, by="parent", reason=reason, kill=kill
    )
    return {"agentInstance": child.id, "cancelled": True, "result": result_to_json(result)}


async def _spawn(app: App, caller: Asking, params: Params) -> Any:
    wait, handle = params.flag("wait"), params.flag("handle")  # waited for in another call
    request = _request(app, caller, params, background=not wait and not handle)
    subagents = await app.service.spawning.admit(caller.task, request)
    heard = remarks(app, caller.task, subagents, request.briefs)
    if not wait:
        return begun(app, await app.service.spawning.up(subagents)) | heard
    results, news = await parents.attended(app, params, subagents, caller.consumer)
    return batch_to_json(results) | news | heard


async def _continue(app: App, caller: Asking, params: Params) -> Any:
    message, timeout = params.text("message"), params.number("timeout_seconds")
    again = params.flag("again")
    child, spawning = _own(app, caller, params), app.service.spawning
    goes_on = parents.taken_up(app, child, message) if again else None
    if goes_on is None:
        goes_on = await spawning.continue_(
            caller.task, child.id, message, by="parent", timeout=timeout
        )
    (result,), news = await parents.attended(app, params, [goes_on], caller.consumer)
    return result_to_json(result) | news | other_time(goes_on, child.id, timeout)


async def _wait(app: App, caller: Asking, params: Params) -> Any:
    """The next end among its own; it never hears of others. A message goes before waiting on."""
    timeout, heard = params.number("timeout_seconds"), params.count("heard", LARGEST, LARGEST)
    params.done()
    consumer, loop = caller.consumer, asyncio.get_running_loop()
    end = None if timeout is None else loop.time() + timeout
    while True:
        left = None if end is None else max(0.0, end - loop.time())
        waiting = app.service.waiting
        settled = await waiting.wait_any(
            caller.task,
            timeout=left,
            consumer=consumer,
            mine=caller.mine,
            called=lambda: app.workspaces.newest_message(caller.child) > heard,
        )
        if caller.has(settled):
            news = parents.telling(app, params, [settled], consumer)
            return parents.told(app, settled) | news


async def _take(app: App, caller: Asking, params: Params) -> Any:
    most = params.count("limit", parents.MOST_AT_ONCE, parents.MOST_AT_ONCE)
    but = texts_of(params, "but")
    params.done()
    taken = app.service.waiting.take(caller.task, caller.consumer, but=but, mine=caller.mine)
    own = (each for each in taken if caller.has(each))
    return parents.telling_all(app, params, islice(own, most), caller.consumer)


async def _fetch(app: App, caller: Asking, params: Params) -> Any:
    child = _own(app, caller, params)
    if not child.standing.settled:
        return subagent_row(app, child) | {"result": None}
    return parents.told(app, child) | _tell(app, caller, child, params)


async def _take_back(app: App, caller: Asking, params: Params) -> Any:
    names = texts_of(params, "subagents")
    params.done()
    lost = [_child(app, caller, name) for name in names]
    parents.tell_again(app, lost, caller.consumer)


async def _cancel_told(app: App, caller: Asking, params: Params) -> Any:
    reason, again = params.text("reason", ""), params.flag("again")
    child = _own(app, caller, params)
    if not (again and child.standing.settled):
        await app.service.subagents.cancel(caller.task, child.id, by="parent", reason=reason)
    child = app.service.subagents.get(caller.task, child.id)
    return parents.told(app, child) | _tell(app, caller, child, params)


async def _look(app: App, caller: Asking, params: Params) -> Any:
    return subagent_row(app, _own(app, caller, params))


async def _file(app: App, caller: Asking, params: Params) -> Any:
    """One file out of the workspace of a subagent of its own."""
    path = params.text("path")
    data = app.taking.file(_own(app, caller, params), path)
    return {"content": base64.b64encode(data).decode()}


async def _files(app: App, caller: Asking, params: Params) -> Any:
    return app.taking.files(_own(app, caller, params))


async def _plan(app: App, caller: Asking, params: Params) -> Any:
    """A whole plan, carried out for it in its own task; the answer comes with its end."""
    given = params.raw("plan")
    params.done()
    submitted, policy = app.service.roots.submitted, app.folders.config(caller.task)
    try:
        plan = plan_from_json(given)
        document = plan_to_json(plan)
        end = await submitted.carry_out(caller.child, plan, document, policy, caller.member)
    except (BadInput, Refused) as error:
        app.service.spawning.deny(caller.child, error.message)
        raise
    for subagent, _ in end.parts:
        app.service.waiting.tell(subagent, caller.consumer)
    batch = batch_to_json([result for _, result in end.parts if result is not None])
    whole = end.details.get("outcome") == "succeeded"
    return batch | end.details | {"success": whole} | warnings_to_json(unheld(plan))


FOR_CHILDREN: dict[str, Any] = {
    "subagent.spawn": _spawn,
    "subagent.list": _list,
    "subagent.result": _result,
    "subagent.cancel": _cancel,
    "parent.spawn": _spawn,
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


def _tell(app: App, caller: Asking, child: Subagent, params: Params) -> dict[str, Any]:
    """Whoever is to be told of its end has been; another who looked at it does not count."""
    return parents.tell(app, params, [child] if caller.sent(child) else [], caller.consumer)


def _own(app: App, caller: Asking, params: Params) -> Subagent:
    name = params.text("subagent")
    params.done()
    return _child(app, caller, name)


def _child(app: App, caller: Asking, name: str) -> Subagent:
    child = app.service.subagents.get(caller.task, name)
    if not caller.has(child):
        raise NotFound(f"{caller.child.id} has no subagent {name[:80]!a}", code="unknown_subagent")
    return child
