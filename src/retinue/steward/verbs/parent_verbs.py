"""Verbs for parents: programs, and children that delegate. Each result is delivered once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import islice
from typing import Any

from retinue.core.errors import BadInput, NotFound
from retinue.core.subagent import Subagent
from retinue.formats.result_json import batch_to_json, result_to_json
from retinue.steward.app import App
from retinue.steward.contract_factory import SpawnRequest
from retinue.steward.task_service import NewTask
from retinue.steward.verbs.core_verbs import (
    Verb,
    add_configuration_hint,
    find_stored_configuration,
    parse_new_task,
)
from retinue.steward.verbs.delivery import (
    CallingParent,
    end_to_json,
    mark_told,
    tell,
    tell_again,
    wait_and_tell,
)
from retinue.steward.verbs.params import LARGEST, Params, take_texts
from retinue.steward.verbs.spawn_requests import (
    collect_spawn_warnings,
    collect_timeout_warning,
    describe_background_spawn,
    make_subagent_row,
    parse_parent_request,
)

MOST_AT_ONCE = 100
# Limit for answers in one response of `parent.take`; the last one may exceed it
MOST_CHARACTERS = 1 << 20

ParentVerb = Callable[[App, CallingParent, Params], Awaitable[Any]]


async def spawn(app: App, parent: CallingParent, params: Params) -> Any:
    wait = params.take_flag("wait")
    # handle: the caller collects the results with `parent.collect`.
    handle = params.take_flag("handle")
    request = parse_parent_request(app, parent, params, background=not wait and not handle)
    # A child delegates in its own task; for it, `create` is an unknown parameter.
    created = parse_new_task(app, params.take_raw("create")) if parent.child is None else None
    params.refuse_unknown()
    subagents = await _admit_call(app, parent, request, created)
    heard = collect_spawn_warnings(app, parent.task, subagents, request.briefs)
    if wait:
        results, news = await wait_and_tell(app, parent, params, subagents)
        return batch_to_json(results) | news | heard
    # Reserve the results before any of the subagents can end.
    if handle:
        app.waiting.reserved.keep(subagents, parent.consumer, client=params.client)
    return describe_background_spawn(app, await app.spawning.wait_up(subagents)) | heard


async def _admit_call(
    app: App, parent: CallingParent, request: SpawnRequest, created: tuple[NewTask, str] | None
) -> list[Subagent]:
    """Admit the call; for a program, a refusal names the configuration file to change."""
    spawning = app.spawning
    # A child cannot change the configuration, so it gets no such hint.
    if parent.child is not None:
        return await spawning.admit(parent.task, request)
    new, where = (None, "") if created is None else created
    if new is None or spawning.has_task(parent.task):
        where = find_stored_configuration(app, parent.task)
    with add_configuration_hint(where):
        return await spawning.admit(parent.task, request, new)


async def continue_(app: App, parent: CallingParent, params: Params) -> Any:
    message = params.take_text("message")
    timeout = params.take_number("timeout_seconds")
    again = params.take_flag("again")
    known = take_subagent(app, parent, params)
    # A repeated request must not continue the subagent a second time.
    goes_on = _find_continued(app, known, message) if again else None
    if goes_on is None:
        goes_on = await app.spawning.continue_(
            known.task, known.id, message, by=parent.by, timeout=timeout
        )
    (result,), news = await wait_and_tell(app, parent, params, [goes_on])
    return result_to_json(result) | news | collect_timeout_warning(goes_on, message, timeout)


def _find_continued(app: App, known: Subagent, message: str) -> Subagent | None:
    """Return the newest subagent of the lineage that already received this message, if any."""
    answered = {
        gate.subagent for gate in app.records.list_gates(known.task) if gate.answer == message
    }
    for other in reversed(app.records.list_lineage(known)):
        told = other.contract.resumes and other.contract.step.description.endswith(f"\n\n{message}")
        if told or other.id in answered:
            return other
    return None


async def wait(app: App, parent: CallingParent, params: Params) -> Any:
    """Wait for the next of the parent's own subagents; a new message ends the wait early."""
    timeout = params.take_number("timeout_seconds")
    child = parent.child
    heard = params.take_count("heard", LARGEST, LARGEST) if child is not None else LARGEST
    params.refuse_unknown()
    loop = asyncio.get_running_loop()
    left = timeout
    began = loop.time()
    while True:
        settled = await app.waiting.wait_any(
            parent.task,
            timeout=left,
            consumer=parent.consumer,
            mine=parent.mine,
            called=lambda: child is not None and app.workspaces.find_newest_message(child) > heard,
        )
        if parent.is_parent_of(settled):
            return end_to_json(app, settled) | mark_told(app, parent, params, [settled])
        # A subagent of another parent was skipped: wait for the rest of the time.
        if timeout is not None:
            left = max(0.0, began + timeout - loop.time())


async def take(app: App, parent: CallingParent, params: Params) -> Any:
    """Return the results that were not delivered yet, as many as fit in one response."""
    most = params.take_count("limit", MOST_AT_ONCE, MOST_AT_ONCE)
    but = take_texts(params, "but")
    params.refuse_unknown()
    ends = app.waiting.take(parent.task, parent.consumer, but=but, mine=parent.mine)
    news: list[Subagent] = []
    params.if_lost = lambda: tell_again(app, parent, news)
    documents: list[dict[str, Any]] = []
    characters = 0
    for each in islice(filter(parent.is_parent_of, ends), most):
        news.append(each)
        documents.append(end_to_json(app, each))
        told = documents[-1]["result"]
        characters += len(told["answer"] or "") + len(told.get("error_output", ""))
        # The next call returns the rest.
        if characters > MOST_CHARACTERS:
            break
    return documents


async def take_back(app: App, parent: CallingParent, params: Params) -> Any:
    """Return results to the queue whose response the parent did not receive."""
    tell_again(app, parent, _take_subagents(app, parent, params))


async def get_result(app: App, parent: CallingParent, params: Params) -> Any:
    subagent = take_subagent(app, parent, params)
    if not subagent.standing.settled:
        return make_subagent_row(app, subagent) | {"result": None}
    return _deliver_end(app, parent, params, subagent)


async def collect(app: App, parent: CallingParent, params: Params) -> Any:
    """Return the results of several subagents; while one is running, only their rows."""
    subagents = _take_subagents(app, parent, params)
    if not subagents:
        raise BadInput("nothing to collect", code="invalid_request")
    found: dict[str, Any] = {
        "created_at": min(each.created_at for each in subagents),
        "updated_at": max(
            each.ended_at or each.started_at or each.created_at for each in subagents
        ),
        "rows": [make_subagent_row(app, each) for each in subagents],
    }
    held = app.waiting.reserved
    if not all(each.standing.settled for each in subagents):
        # Reserve the results again: the caller will come back for them.
        held.keep(subagents, parent.consumer, client=params.client)
        return found | {"batch": None}
    results = [app.subagents.get_result(each.task, each.id) for each in subagents]
    tell(app, parent, params, subagents)
    held.release(subagents, parent.consumer)
    return found | {"batch": batch_to_json(results)}


async def cancel(app: App, parent: CallingParent, params: Params) -> Any:
    reason = params.take_text("reason", "")
    again = params.take_flag("again")
    subagent = take_subagent(app, parent, params)
    # A repeated request finds that the first one already cancelled the subagent.
    if not (again and subagent.standing.settled):
        await app.subagents.cancel(subagent.task, subagent.id, by=parent.by, reason=reason)
    return _deliver_end(app, parent, params, app.subagents.get(subagent.task, subagent.id))


async def look(app: App, parent: CallingParent, params: Params) -> Any:
    return make_subagent_row(app, take_subagent(app, parent, params))


PARENTS: dict[str, ParentVerb] = {
    "parent.spawn": spawn,
    "parent.continue": continue_,
    "parent.wait": wait,
    "parent.take": take,
    "parent.take_back": take_back,
    "parent.result": get_result,
    "parent.collect": collect,
    "parent.cancel": cancel,
    "parent.look": look,
}


async def _call_for_program(verb: ParentVerb, app: App, params: Params) -> Any:
    task = params.take_task()
    consumer = "" if verb is look else params.take_text("consumer")
    return await verb(
        app, CallingParent(task=task, consumer=consumer, by=params.get_actor()), params
    )


FOR_PROGRAMS: dict[str, Verb] = {
    name: partial(_call_for_program, verb) for name, verb in PARENTS.items()
}


def take_subagent(app: App, parent: CallingParent, params: Params) -> Subagent:
    """Return the named subagent of the parent; refuse further parameters."""
    name = params.take_text("subagent")
    params.refuse_unknown()
    return _get_own(app, parent, name)


def _take_subagents(app: App, parent: CallingParent, params: Params) -> list[Subagent]:
    names = take_texts(params, "subagents")
    params.refuse_unknown()
    return [_get_own(app, parent, name) for name in names]


def _get_own(app: App, parent: CallingParent, name: str) -> Subagent:
    """Raises:
    NotFound: the parent has no such subagent.
    """
    found = app.subagents.get(parent.task, name)
    child = parent.child
    if child is not None and not parent.is_parent_of(found):
        raise NotFound(f"{child.id} has no subagent {name[:80]!a}", code="unknown_subagent")
    return found


def _deliver_end(
    app: App, parent: CallingParent, params: Params, subagent: Subagent
) -> dict[str, Any]:
    """Return a result; mark it as delivered only if this member is its recipient."""
    concerned = [subagent] if parent.should_hear_of(subagent) else []
    return end_to_json(app, subagent) | tell(app, parent, params, concerned)
