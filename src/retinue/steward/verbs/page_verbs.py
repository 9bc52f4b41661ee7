"""Read-only verbs for the web page: bounded pages of data, and long polling for changes."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from retinue.core.errors import BadInput, NotFound
from retinue.core.events import EventFilter
from retinue.core.ids import TaskId
from retinue.core.subagent import Gate, Subagent
from retinue.formats import views_json
from retinue.formats.event_json import event_to_view
from retinue.formats.views_json import SHOWN_ANSWER, gate_to_json, list_not_started
from retinue.steward.app import App
from retinue.steward.journal import ANY
from retinue.steward.verbs.params import LARGEST, Params, take_texts
from retinue.steward.verbs.run_verbs import BY_RULE, can_judge, compose_answer
from retinue.steward.verbs.subagent_verbs import describe_subagent
from retinue.steward.verbs.task_verbs import Verb, check_task_file
from retinue.store.ledger import PERIODS

PAGE = 200
MOST_TASKS = 500
MOST_SECONDS = 60
STREAMS = ("stdout", "stderr")
OUTPUT_BYTES = 64 * 1024
MOST_OUTPUT_BYTES = 1024 * 1024
REQUESTS = 1000
# What the end of a plan says about the branch with its work
END_KEYS = ("branch", "head", "repository", "applied", "apply_error")


async def list_tasks(app: App, params: Params) -> Any:
    """Return the newest tasks with their counts and costs; with `text`, those that match it."""
    limit = params.take_count("limit", 50, MOST_TASKS)
    text = params.take_text("text", "")
    params.refuse_unknown()
    newest = app.tasks.list_newest(limit, text=text)
    return [views_json.overview_to_json(*found, app.pages.get_totals(found[0])) for found in newest]


async def show_task(app: App, params: Params) -> Any:
    name = params.take_task()
    params.refuse_unknown()
    task, counts = app.tasks.show(name)
    end = app.tasks.find_end(task)
    document = views_json.overview_to_json(task, counts, app.pages.get_totals(task)) | {
        "description": task.description,
        "path": str(app.folders.get_folder(task.id)),
        "gates": [
            _describe_gate(app, task.id, gate) for gate in app.pages.list_open_gates(task.id)
        ],
        "not_started": list_not_started(end),
        **_find_run_answer(app, task.id),
        "end": {key: end[key] for key in END_KEYS if key in end},
    }
    return document | check_task_file(app, task.id)


async def list_open_gates(app: App, params: Params) -> Any:
    """Return the open gates of all open tasks."""
    params.refuse_unknown()
    return [
        _describe_gate(app, task, gate)
        | {"task_id": task, "task_title": app.records.get_task(task).title}
        for task, gate in app.pages.list_all_open_gates()
    ]


async def list_lanes(app: App, params: Params) -> Any:
    name = params.take_task()
    which = params.take_text("which", "all")
    first = params.take_count("first", 0, LARGEST)
    limit = params.take_count("limit", PAGE, PAGE)
    params.refuse_unknown()
    if which not in ("all", "open", "failed"):
        raise BadInput("which must be all, open or failed", code="invalid_request")
    task = app.records.get_task(name)
    found = app.pages.list_lanes(task.id, which=which, first=first, limit=limit)
    document: dict[str, Any] = {"lanes": [views_json.lane_to_json(lane) for lane in found]}
    if which == "all":
        document["planned"] = app.pages.list_planned(task, first=first, limit=limit)
    return document


async def list_plans(app: App, params: Params) -> Any:
    """Return the plans of a task as graphs, in the order in which they were started."""
    name = params.take_task()
    params.refuse_unknown()
    task = app.records.get_task(name)
    never = list_not_started(app.tasks.find_end(task))
    return [views_json.graph_to_json(plan, never) for plan in app.pages.list_plans(task)]


async def list_nodes(app: App, params: Params) -> Any:
    """Return the nodes of the hub; unlike `nodes.list`, none of a root without a hub."""
    params.refuse_unknown()
    if app.cluster is None:
        return {"connected": False, "nodes": []}
    nodes = await app.cluster.list_now()
    current = app.cluster.link.connection.is_connected
    return {
        "connected": True,
        "current": current,
        "nodes": views_json.nodes_to_json(nodes, app.cluster.list_heard(), current=current),
    }


async def sum_costs(app: App, params: Params) -> Any:
    """Return what a task or the whole root spent: by model, agent, task, subagent and time."""
    period = params.take_text("period", "")
    if period and period not in PERIODS:
        raise BadInput(f"period must be {', '.join(PERIODS)}", code="invalid_request")
    return asdict(app.costs.sum_costs(_take_optional_task(app, params), period=period))


async def list_requests(app: App, params: Params) -> Any:
    """Return a page of model requests, of a task or of the whole root."""
    after = params.take_count("after", 0, LARGEST)
    limit = params.take_count("limit", REQUESTS, REQUESTS)
    found = app.costs.list_requests(_take_optional_task(app, params), after=after, limit=limit)
    return [views_json.request_to_json(request) for request in found]


async def list_events(app: App, params: Params) -> Any:
    """Return a page of events after a number; wait for the first one if there is none."""
    name = params.take_task()
    after = params.take_count("after", 0, LARGEST)
    limit = params.take_count("limit", PAGE, 1000)
    whole = params.take_flag("whole")
    seconds = params.take_count("wait_seconds", 0, MOST_SECONDS)
    params.refuse_unknown()
    if seconds:
        await _wait_beyond(app, name, after, seconds)
    task = app.records.get_task(name)
    found = app.records.list_events(task.id, after=after, limit=limit)
    told = event_to_view if whole else views_json.condensed_to_json
    return {
        "events": [told(recorded) for recorded in found],
        "last_seq": task.last_seq,
        "closed": task.state == "closed",
    }


async def show_event(app: App, params: Params) -> Any:
    name = params.take_task()
    seq = params.take_count("seq", 0, LARGEST)
    params.refuse_unknown()
    found = app.pages.get_event(app.records.get_task(name).id, seq)
    if found is None:
        raise NotFound(f"task {name} has no event {seq}", code="unknown_event")
    return event_to_view(found)


async def search_events(app: App, params: Params) -> Any:
    """Return matching events, newest first, and the number to continue from; 0 at the end."""
    name = params.take_task()
    before = params.take_count("before", LARGEST, LARGEST)
    limit = params.take_count("limit", PAGE, PAGE)
    wanted = EventFilter(
        kinds=tuple(take_texts(params, "kinds", "patterns")),
        subagent=params.take_text("subagent", ""),
        text=params.take_text("text", ""),
    )
    params.refuse_unknown()
    task = app.records.get_task(name)
    found = app.pages.search(task.id, wanted, before=min(before, task.last_seq + 1), limit=limit)
    return {
        "events": [views_json.condensed_to_json(recorded) for recorded in found.events],
        "before": found.before,
    }


async def wait_changes(app: App, params: Params) -> Any:
    """Wait until an event is recorded in any task; return the change counter."""
    after = params.take_count("after", 0, LARGEST)
    seconds = params.take_count("wait_seconds", 0, MOST_SECONDS)
    params.refuse_unknown()
    journal = app.journal
    await _wait_until(app, ANY, seconds, lambda: journal.changes != after)
    return {"changes": journal.changes}


async def _wait_beyond(app: App, name: TaskId, after: int, seconds: float) -> None:
    """Wait for an event after `after` or the close of the task, at most `seconds`."""
    task_id = app.records.get_task(name).id

    def is_reached() -> bool:
        task = app.records.get_task(task_id)
        return task.last_seq > after or task.state == "closed"

    await _wait_until(app, task_id, seconds, is_reached)


async def _wait_until(app: App, task: TaskId, seconds: float, holds: Callable[[], bool]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await app.journal.wait_until(task, lambda: holds() or None)


async def show_subagent(app: App, params: Params) -> Any:
    """Return everything about a subagent, with its lane, team, costs and open gates."""
    subagent = _get_subagent(app, params)
    task = app.records.get_task(subagent.task)
    team = views_json.team_to_json(*app.workspace_inspector.read_team(subagent))
    return describe_subagent(app, subagent) | {
        "task_state": task.state,
        "last_seq": task.last_seq,
        "lane": views_json.lane_to_json(app.pages.get_lane(subagent.task, subagent.id)),
        "team": team,
        "paid": [
            views_json.model_request_to_json(request)
            for request in app.pages.list_model_requests(subagent.task, subagent.id)
        ],
        "gates": [
            _describe_gate(app, subagent.task, gate)
            for gate in app.pages.list_open_gates(subagent.task)
            if gate.subagent == subagent.id
        ],
    }


async def read_output(app: App, params: Params) -> Any:
    stream = params.take_text("stream", "stdout")
    attempt = params.take_count("attempt", 0, LARGEST)
    limit = params.take_count("bytes", OUTPUT_BYTES, MOST_OUTPUT_BYTES)
    subagent = _get_subagent(app, params)
    if stream not in STREAMS:
        raise BadInput("stream must be stdout or stderr", code="invalid_request")
    tail = app.workspace_inspector.read_output(subagent, stream, attempt, limit)
    return {"text": _decode_text(tail.data), "cut": tail.cut}


async def read_conversation(app: App, params: Params) -> Any:
    entries, more = app.workspace_inspector.read_entries(_get_subagent(app, params))
    return {"entries": entries, "more": more}


async def list_files(app: App, params: Params) -> Any:
    subagent = _get_subagent(app, params)
    found, more = app.workspace_inspector.list_files(subagent)
    patch = app.workspace_inspector.read_patch(subagent)
    return {
        "files": [asdict(each) for each in found],
        "more": more,
        "patch": None if patch is None else {"text": _decode_text(patch.data), "cut": patch.cut},
    }


async def read_file(app: App, params: Params) -> Any:
    path = params.take_text("path")
    found = app.workspace_inspector.read_file(_get_subagent(app, params), path)
    return {"path": path, "text": _decode_text(found.data), "cut": found.cut}


PAGE_VERBS: dict[str, Verb] = {
    "look.tasks": list_tasks,
    "look.task": show_task,
    "look.gates": list_open_gates,
    "look.lanes": list_lanes,
    "look.plans": list_plans,
    "look.nodes": list_nodes,
    "look.costs": sum_costs,
    "look.requests": list_requests,
    "look.events": list_events,
    "look.event": show_event,
    "look.search": search_events,
    "look.changes": wait_changes,
    "look.subagent": show_subagent,
    "look.output": read_output,
    "look.conversation": read_conversation,
    "look.files": list_files,
    "look.file": read_file,
}


def _describe_gate(app: App, task: TaskId, gate: Gate) -> dict[str, Any]:
    """Return a gate, and whether it asks to approve output instead of a question."""
    asking = app.records.get_subagent(task, gate.subagent)
    return gate_to_json(gate) | {"review": asking.standing.in_review}


def _get_subagent(app: App, params: Params) -> Subagent:
    name = params.take_task()
    who = params.take_text("subagent")
    params.refuse_unknown()
    return app.records.get_subagent(name, who)


def _take_optional_task(app: App, params: Params) -> str:
    """Return the id of the named task; empty for the whole root."""
    name = params.take_text("task", "")
    params.refuse_unknown()
    return app.records.get_task(TaskId(name)).id if name else ""


def _find_run_answer(app: App, task: TaskId) -> dict[str, Any]:
    """Return the beginning of the answer of a task's root team; None if it has none yet.

    `answer_by` says where no model wrote it.
    """
    root = app.team_runs.find_root_team(task)
    result = app.records.get_result(root) if root is not None else None
    if root is None or result is None or result.answer is None:
        return {"answer": None}
    if result.success and not can_judge(root):
        composed = compose_answer(app, app.tasks.join(task).parts)
        if composed:
            return {"answer": composed[:SHOWN_ANSWER], "answer_by": BY_RULE}
    return {"answer": result.answer[:SHOWN_ANSWER]}


def _decode_text(data: bytes) -> str:
    """Decode UTF-8 with replacement characters; drop a cut character at the end."""
    # An incremental decoder keeps the incomplete bytes back instead of replacing them.
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data)
