"""Verbs for whoever watches: pages of bounded size, and waiting for the next change."""

from __future__ import annotations

import codecs
from dataclasses import asdict
from typing import Any

from retinue.app import App
from retinue.domain.errors import BadInput, NotFound
from retinue.domain.page import Wanted
from retinue.domain.subagent import Subagent
from retinue.steward.params import LARGEST, Params, texts_of
from retinue.steward.verbs import Verb, shown, trouble
from retinue.wire import pages
from retinue.wire.event import event_to_json
from retinue.wire.joined import never_started
from retinue.wire.views import gate_to_json

PAGE = 200
MOST_TASKS = 500
MOST_SECONDS = 60
STREAMS = ("stdout", "stderr")
OUTPUT_BYTES = 64 * 1024
MOST_OUTPUT_BYTES = 1024 * 1024


async def tasks(app: App, params: Params) -> Any:
    """The newest tasks with their counts and costs."""
    limit = params.count("limit", 50, MOST_TASKS)
    params.done()
    newest = app.service.tasks.newest(limit)
    return [pages.overview_to_json(*found, app.pages.totals(found[0])) for found in newest]


async def task(app: App, params: Params) -> Any:
    name = params.task()
    params.done()
    known, counts = app.service.tasks.show(name)
    document = pages.overview_to_json(known, counts, app.pages.totals(known)) | {
        "description": known.description,
        "path": str(app.folders.folder(known.id)),
        "gates": [gate_to_json(gate) for gate in app.pages.open_gates(known.id)],
        "not_started": never_started(app.service.tasks.end_of(known)),
    }
    return document | trouble(app, known.id)


async def lanes(app: App, params: Params) -> Any:
    name, which = params.task(), params.text("which", "all")
    first, limit = params.count("first", 0, LARGEST), params.count("limit", PAGE, PAGE)
    params.done()
    if which not in ("all", "open", "failed"):
        raise BadInput("which must be all, open or failed", code="invalid_request")
    known = app.records.task(name).id
    found = app.pages.lanes(known, which=which, first=first, limit=limit)
    return {"lanes": [pages.lane_to_json(lane) for lane in found]}


async def events(app: App, params: Params) -> Any:
    """A page of events after a number: at once where there are any, else as soon as there are."""
    name, after = params.task(), params.count("after", 0, LARGEST)
    limit, whole = params.count("limit", PAGE, 1000), params.flag("whole")
    seconds = params.count("wait_seconds", 0, MOST_SECONDS)
    params.done()
    if seconds:
        await app.service.waiting.beyond(name, after=after, seconds=seconds)
    known = app.records.task(name)
    found = app.service.tasks.events(known.id, after=after, limit=limit)
    told = event_to_json if whole else pages.condensed_to_json
    return {
        "events": [told(recorded) for recorded in found],
        "last_seq": known.last_seq,
        "closed": known.state == "closed",
    }


async def event(app: App, params: Params) -> Any:
    name, seq = params.task(), params.count("seq", 0, LARGEST)
    params.done()
    found = app.pages.event(app.records.task(name).id, seq)
    if found is None:
        raise NotFound(f"task {name} has no event {seq}", code="unknown_event")
    return event_to_json(found)


async def search(app: App, params: Params) -> Any:
    """Events that match, newest first, and from where to go on; 0 once there is nothing before."""
    name = params.task()
    before, limit = params.count("before", LARGEST, LARGEST), params.count("limit", PAGE, PAGE)
    wanted = Wanted(
        kinds=tuple(texts_of(params, "kinds", "patterns")),
        subagent=params.text("subagent", ""),
        text=params.text("text", ""),
    )
    params.done()
    known = app.records.task(name)
    found = app.pages.search(known.id, wanted, before=min(before, known.last_seq + 1), limit=limit)
    return {
        "events": [pages.condensed_to_json(recorded) for recorded in found.events],
        "before": found.before,
    }


async def changes(app: App, params: Params) -> Any:
    """Whether anything was recorded in any task, told as soon as it is."""
    after, seconds = (
        params.count("after", 0, LARGEST),
        params.count("wait_seconds", 0, MOST_SECONDS),
    )
    params.done()
    return {"changes": await app.service.waiting.anything(after=after, seconds=seconds)}


async def subagent(app: App, params: Params) -> Any:
    """All that is known of a subagent, with its lane, its team and what it paid."""
    known = _subagent(app, params)
    task, team = app.records.task(known.task), pages.team_to_json(*app.inspection.team(known))
    return shown(app, known) | {
        "task_state": task.state,
        "last_seq": task.last_seq,
        "lane": pages.lane_to_json(app.pages.lane(known.task, known.id)),
        "team": team,
        "paid": [pages.paid_to_json(paid) for paid in app.pages.paid(known.task, known.id)],
        "gates": [
            gate_to_json(gate)
            for gate in app.pages.open_gates(known.task)
            if gate.subagent == known.id
        ],
    }


async def output(app: App, params: Params) -> Any:
    stream, attempt = params.text("stream", "stdout"), params.count("attempt", 0, LARGEST)
    limit = params.count("bytes", OUTPUT_BYTES, MOST_OUTPUT_BYTES)
    known = _subagent(app, params)
    if stream not in STREAMS:
        raise BadInput("stream must be stdout or stderr", code="invalid_request")
    tail = app.inspection.output(known, stream, attempt, limit)
    return {"text": _text(tail.data), "cut": tail.cut}


async def conversation(app: App, params: Params) -> Any:
    entries, more = app.inspection.conversation(_subagent(app, params))
    return {"entries": entries, "more": more}


async def files(app: App, params: Params) -> Any:
    known = _subagent(app, params)
    found, more = app.inspection.files(known)
    patch = app.inspection.patch(known)
    return {
        "files": [asdict(each) for each in found],
        "more": more,
        "patch": None if patch is None else {"text": _text(patch.data), "cut": patch.cut},
    }


async def file(app: App, params: Params) -> Any:
    path = params.text("path")
    found = app.inspection.file(_subagent(app, params), path)
    return {"path": path, "text": _text(found.data), "cut": found.cut}


LOOKING: dict[str, Verb] = {
    "look.tasks": tasks,
    "look.task": task,
    "look.lanes": lanes,
    "look.events": events,
    "look.event": event,
    "look.search": search,
    "look.changes": changes,
    "look.subagent": subagent,
    "look.output": output,
    "look.conversation": conversation,
    "look.files": files,
    "look.file": file,
}


def _subagent(app: App, params: Params) -> Subagent:
    name, who = params.task(), params.text("subagent")
    params.done()
    return app.service.subagents.get(name, who)


def _text(data: bytes) -> str:
    """Marked where it is not UTF-8; half a character at the end is left out."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data)
