"""Verbs for a parent that is told of each end once, by whatever answer comes first.

A parent is a consumer by name. What it has been given counts as seen, for all its doors and
for as long as the task exists. An answer names those of whom it is the first to tell (`tells`):
if nobody received it, they are told again, and no others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import Any

from retinue.app import App
from retinue.domain.contract import Caller
from retinue.domain.errors import BadInput, NotFound
from retinue.domain.result import Result
from retinue.domain.subagent import Subagent
from retinue.service import Request
from retinue.steward.params import Params, folder_of, texts_of
from retinue.steward.rows import begun, other_time, remarks, subagent_row
from retinue.steward.verbs import Verb
from retinue.wire.brief import parse_briefs, request_sha256
from retinue.wire.result import batch_to_json, result_to_json

MOST_AT_ONCE = 100
MOST_CHARACTERS = 1 << 20  # of answers that come by themselves, but for the last
MOST_LOOKED_AT = 1000
MAX_NAME = 200


async def spawn(app: App, params: Params) -> Any:
    task, wait, consumer = params.task(), params.flag("wait"), params.text("consumer")
    briefs, key = parse_briefs(params.raw("tasks")), params.text("key", "")
    handle = params.flag("handle")  # whoever asks collects the results itself
    request = Request(
        briefs=briefs,
        base=folder_of(params.text("cwd", str(app.settings.project))),
        by=params.by(),
        key=key,
        sha256=request_sha256(briefs) if key else "",
        caller=_caller(params.raw("caller")),
        again=True,
        background=not wait and not handle,
    )
    params.done()
    subagents = await app.service.spawning.admit(task, request)
    heard = remarks(app, task, subagents, request.briefs)
    if wait:
        results, news = await attended(app, params, subagents, consumer)
        return batch_to_json(results) | news | heard
    if handle:  # before any of them can end
        app.service.waiting.held.keep(subagents, consumer, client=params.client)
    return begun(app, await app.service.spawning.up(subagents)) | heard


async def continue_(app: App, params: Params) -> Any:
    task, name, consumer = params.task(), params.text("subagent"), params.text("consumer")
    message, timeout, by = params.text("message"), params.number("timeout_seconds"), params.by()
    again = params.flag("again")
    params.done()
    known, spawning = app.service.subagents.get(task, name), app.service.spawning
    subagent = taken_up(app, known, message) if again else None
    if subagent is None:
        subagent = await spawning.continue_(task, name, message, by=by, timeout=timeout)
    (result,), news = await attended(app, params, [subagent], consumer)
    return result_to_json(result) | news | other_time(subagent, name, timeout)


def taken_up(app: App, known: Subagent, message: str) -> Subagent | None:
    """Who goes on with this message, where an earlier steward had it; None where none had."""
    gates = app.records.gates(known.task)
    if any(gate.subagent == known.id and gate.answer == message for gate in gates):
        return known
    for other in app.service.subagents.roll(known.task, limit=MOST_LOOKED_AT):
        words = other.contract.step.description
        if other.contract.resumes == known.id and words.endswith(f"\n\n{message}"):
            return other
    return None


async def wait(app: App, params: Params) -> Any:
    task, consumer = params.task(), params.text("consumer")
    timeout = params.number("timeout_seconds")
    params.done()
    settled = await app.service.waiting.wait_any(task, timeout=timeout, consumer=consumer)
    return telling(app, params, [settled], consumer) | told(app, settled)


async def take(app: App, params: Params) -> Any:
    task, consumer = params.task(), params.text("consumer")
    most, but = params.count("limit", MOST_AT_ONCE, MOST_AT_ONCE), texts_of(params, "but")
    params.done()
    ends = app.service.waiting.take(task, consumer, but=but)
    return telling_all(app, params, islice(ends, most), consumer)


async def take_back(app: App, params: Params) -> Any:
    """What an answer told that nobody received is told again."""
    task, consumer = params.task(), params.text("consumer")
    names = texts_of(params, "subagents")
    params.done()
    lost = [app.service.subagents.get(task, name) for name in names]
    tell_again(app, lost, consumer)


async def result(app: App, params: Params) -> Any:
    task, name, consumer = params.task(), params.text("subagent"), params.text("consumer")
    params.done()
    subagent = app.service.subagents.get(task, name)
    try:
        app.service.subagents.result(task, name)
    except NotFound:
        return subagent_row(app, subagent) | {"result": None}
    return told(app, subagent) | tell(app, params, [subagent], consumer)


async def collect(app: App, params: Params) -> Any:
    """The results of several, as one; or what they are doing, while one still works."""
    task, consumer = params.task(), params.text("consumer")
    names = texts_of(params, "subagents")
    params.done()
    if not names:
        raise BadInput("nothing to collect", code="invalid_request")
    subagents = [app.service.subagents.get(task, name) for name in names]
    found: dict[str, Any] = {
        "created_at": min(each.created_at for each in subagents),
        "updated_at": max(
            each.ended_at or each.started_at or each.created_at for each in subagents
        ),
        "rows": [subagent_row(app, each) for each in subagents],
    }
    held = app.service.waiting.held
    if not all(each.standing.settled for each in subagents):
        held.keep(subagents, consumer, client=params.client)
        return found | {"batch": None}
    results = [app.service.subagents.result(each.task, each.id) for each in subagents]
    tell(app, params, subagents, consumer)
    held.release(subagents, consumer)
    return found | {"batch": batch_to_json(results)}


async def cancel(app: App, params: Params) -> Any:
    task, name, consumer = params.task(), params.text("subagent"), params.text("consumer")
    reason, by, again = params.text("reason", ""), params.by(), params.flag("again")
    params.done()
    subagent = app.service.subagents.get(task, name)
    if not (again and subagent.standing.settled):
        await app.service.subagents.cancel(task, name, by=by, reason=reason)
    subagent = app.service.subagents.get(task, name)
    return told(app, subagent) | tell(app, params, [subagent], consumer)


async def look(app: App, params: Params) -> Any:
    task, name = params.task(), params.text("subagent")
    params.done()
    return subagent_row(app, app.service.subagents.get(task, name))


PARENTS: dict[str, Verb] = {
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


async def attended(
    app: App, params: Params, subagents: Sequence[Subagent], consumer: str
) -> tuple[list[Result], dict[str, Any]]:
    """The results of subagents whose parent blocks on them, told by this very answer, and whose
    are news; a parent that is gone is told of their ends when it waits again, as of any others.
    """
    held = app.service.waiting.held
    with ExitStack() as holding:
        held.hold(subagents, consumer)
        holding.callback(held.let_go, subagents, consumer)
        results = await app.service.spawning.attend(subagents, when_gone=holding.close)
        settled = [app.service.subagents.get(each.task, each.id) for each in subagents]
        news = tell(app, params, settled, consumer)
    return results, news


def tell(app: App, params: Params, subagents: Sequence[Subagent], consumer: str) -> dict[str, Any]:
    """The consumer has these results by this answer, and is told of none of them again."""
    news = [each for each in subagents if app.service.waiting.tell(each, consumer)]
    return telling(app, params, news, consumer)


def telling(app: App, params: Params, news: Sequence[Subagent], consumer: str) -> dict[str, Any]:
    """What the answer says of those of whom the consumer had not been told before."""
    params.if_lost = lambda: tell_again(app, news, consumer)
    return {"tells": [each.id for each in news]}


def telling_all(
    app: App, params: Params, ends: Iterator[Subagent], consumer: str
) -> list[dict[str, Any]]:
    """An answer that tells of ends as they are taken: of as many as it bears."""
    news: list[Subagent] = []
    telling(app, params, news, consumer)
    documents: list[dict[str, Any]] = []
    characters = 0
    for each in ends:
        news.append(each)
        documents.append(told(app, each))
        characters += len(documents[-1]["result"]["answer"] or "")
        if characters > MOST_CHARACTERS:
            break  # the rest comes with the next
    return documents


def tell_again(app: App, subagents: Sequence[Subagent], consumer: str) -> None:
    """The consumer was told of these in vain: it will be told again."""
    for subagent in subagents:
        app.service.waiting.undeliver(subagent, consumer)


def told(app: App, subagent: Subagent) -> dict[str, Any]:
    outcome = app.service.subagents.result(subagent.task, subagent.id)
    return {
        "agentInstance": subagent.id,
        "status": subagent.standing.status,
        "result": result_to_json(outcome),
    }


def _caller(given: Any) -> Caller | None:
    """Who asks, as the program said it: words of strangers, kept short."""
    if given is None:
        return None
    if not isinstance(given, dict) or not all(isinstance(each, str) for each in given.values()):
        raise BadInput("caller must be an object of texts", code="invalid_request")
    names = ("client", "session", "call", "trace")
    known = {name: given.get(name, "")[:MAX_NAME] for name in names}
    return Caller(**known) if any(known.values()) else None
