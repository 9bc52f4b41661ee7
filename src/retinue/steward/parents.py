"""Verbs for a parent that is told of each end once, whoever it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import islice
from typing import Any

from retinue.app import App
from retinue.domain.errors import BadInput, NotFound
from retinue.domain.subagent import Subagent
from retinue.steward.params import LARGEST, Params, texts_of
from retinue.steward.requests import request_of_parent
from retinue.steward.rows import begun, other_time, remarks, subagent_row
from retinue.steward.telling import Parent, attended, end_to_json, tell, tell_again, tells
from retinue.steward.verbs import Verb
from retinue.wire.result import batch_to_json, result_to_json

MOST_AT_ONCE = 100
MOST_CHARACTERS = 1 << 20  # of answers that come by themselves, but for the last
MOST_LOOKED_AT = 1000

ParentVerb = Callable[[App, Parent, Params], Awaitable[Any]]


async def spawn(app: App, parent: Parent, params: Params) -> Any:
    wait = params.flag("wait")
    handle = params.flag("handle")  # whoever asks collects the results itself
    request = request_of_parent(app, parent, params, background=not wait and not handle)
    params.done()
    subagents = await app.service.spawning.admit(parent.task, request)
    heard = remarks(app, parent.task, subagents, request.briefs)
    if wait:
        results, news = await attended(app, parent, params, subagents)
        return batch_to_json(results) | news | heard
    if handle:  # before any of them can end
        app.service.waiting.held.keep(subagents, parent.consumer, client=params.client)
    return begun(app, await app.service.spawning.up(subagents)) | heard


async def continue_(app: App, parent: Parent, params: Params) -> Any:
    message, timeout = params.text("message"), params.number("timeout_seconds")
    again, known = params.flag("again"), one(app, parent, params)
    goes_on = _taken_up(app, known, message) if again else None
    if goes_on is None:
        goes_on = await app.service.spawning.continue_(
            known.task, known.id, message, by=parent.by, timeout=timeout
        )
    (result,), news = await attended(app, parent, params, [goes_on])
    return result_to_json(result) | news | other_time(goes_on, known.id, timeout)


def _taken_up(app: App, known: Subagent, message: str) -> Subagent | None:
    """Who goes on with this message, where an earlier steward had it; None where none had."""
    gates = app.records.gates(known.task)
    if any(gate.subagent == known.id and gate.answer == message for gate in gates):
        return known
    for other in app.service.subagents.roll(known.task, limit=MOST_LOOKED_AT):
        words = other.contract.step.description
        if other.contract.resumes == known.id and words.endswith(f"\n\n{message}"):
            return other
    return None


async def wait(app: App, parent: Parent, params: Params) -> Any:
    """The next end among its own; it never hears of others. A message goes before waiting on."""
    timeout, child = params.number("timeout_seconds"), parent.child
    heard = params.count("heard", LARGEST, LARGEST) if child is not None else LARGEST
    params.done()
    loop = asyncio.get_running_loop()
    left, began = timeout, loop.time()
    while True:
        settled = await app.service.waiting.wait_any(
            parent.task,
            timeout=left,
            consumer=parent.consumer,
            mine=parent.mine,
            called=lambda: child is not None and app.workspaces.newest_message(child) > heard,
        )
        if parent.owns(settled):
            return end_to_json(app, settled) | tells(app, parent, params, [settled])
        if timeout is not None:
            left = max(0.0, began + timeout - loop.time())


async def take(app: App, parent: Parent, params: Params) -> Any:
    """What has ended since it was last told: as much as one answer bears."""
    most, but = params.count("limit", MOST_AT_ONCE, MOST_AT_ONCE), texts_of(params, "but")
    params.done()
    ends = app.service.waiting.take(parent.task, parent.consumer, but=but, mine=parent.mine)
    news: list[Subagent] = []
    params.if_lost = lambda: tell_again(app, parent, news)
    documents: list[dict[str, Any]] = []
    characters = 0
    for each in islice(filter(parent.owns, ends), most):
        news.append(each)
        documents.append(end_to_json(app, each))
        characters += len(documents[-1]["result"]["answer"] or "")
        if characters > MOST_CHARACTERS:
            break  # the rest comes with the next
    return documents


async def take_back(app: App, parent: Parent, params: Params) -> Any:
    """What an answer told that nobody received is told again."""
    tell_again(app, parent, _several(app, parent, params))


async def result(app: App, parent: Parent, params: Params) -> Any:
    subagent = one(app, parent, params)
    if not subagent.standing.settled:
        return subagent_row(app, subagent) | {"result": None}
    return _ended(app, parent, params, subagent)


async def collect(app: App, parent: Parent, params: Params) -> Any:
    """The results of several, as one; or what they are doing, while one still works."""
    subagents = _several(app, parent, params)
    if not subagents:
        raise BadInput("nothing to collect", code="invalid_request")
    found: dict[str, Any] = {
        "created_at": min(each.created_at for each in subagents),
        "updated_at": max(
            each.ended_at or each.started_at or each.created_at for each in subagents
        ),
        "rows": [subagent_row(app, each) for each in subagents],
    }
    held = app.service.waiting.held
    if not all(each.standing.settled for each in subagents):
        held.keep(subagents, parent.consumer, client=params.client)
        return found | {"batch": None}
    results = [app.service.subagents.result(each.task, each.id) for each in subagents]
    tell(app, parent, params, subagents)
    held.release(subagents, parent.consumer)
    return found | {"batch": batch_to_json(results)}


async def cancel(app: App, parent: Parent, params: Params) -> Any:
    reason, again = params.text("reason", ""), params.flag("again")
    subagent = one(app, parent, params)
    if not (again and subagent.standing.settled):
        await app.service.subagents.cancel(subagent.task, subagent.id, by=parent.by, reason=reason)
    return _ended(app, parent, params, app.service.subagents.get(subagent.task, subagent.id))


async def look(app: App, parent: Parent, params: Params) -> Any:
    return subagent_row(app, one(app, parent, params))


PARENTS: dict[str, ParentVerb] = {
    "parent.spawn": spawn,
    "parent.continue": continue_,
    "parent.wait": wait,
    "parent.take": take,
    "parent.take_back": take_back,
    "parent.result": result,
    "parent.collect": collect,
    "parent.cancel": cancel,
    "parent.look": look,
}


async def _of_program(verb: ParentVerb, app: App, params: Params) -> Any:
    task, consumer = params.task(), "" if verb is look else params.text("consumer")
    return await verb(app, Parent(task=task, consumer=consumer, by=params.by()), params)


FOR_PROGRAMS: dict[str, Verb] = {name: partial(_of_program, verb) for name, verb in PARENTS.items()}


def one(app: App, parent: Parent, params: Params) -> Subagent:
    """The subagent that was named, where it is the parent's; nothing else was sent."""
    name = params.text("subagent")
    params.done()
    return _own(app, parent, name)


def _several(app: App, parent: Parent, params: Params) -> list[Subagent]:
    names = texts_of(params, "subagents")
    params.done()
    return [_own(app, parent, name) for name in names]


def _own(app: App, parent: Parent, name: str) -> Subagent:
    """Raises:
    NotFound: the parent has no such subagent.
    """
    found, child = app.service.subagents.get(parent.task, name), parent.child
    if child is not None and not parent.owns(found):
        raise NotFound(f"{child.id} has no subagent {name[:80]!a}", code="unknown_subagent")
    return found


def _ended(app: App, parent: Parent, params: Params, subagent: Subagent) -> dict[str, Any]:
    """Its end. Whoever is to be told of it has been; another who looked at it does not count."""
    concerned = [subagent] if parent.sent(subagent) else []
    return end_to_json(app, subagent) | tell(app, parent, params, concerned)
