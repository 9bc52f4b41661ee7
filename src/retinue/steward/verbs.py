"""Every verb by its name: JSON in, the Service's answer as JSON out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from typing import Any

from retinue.app import App
from retinue.domain.errors import BadInput
from retinue.domain.event import Recorded
from retinue.domain.ids import TaskId
from retinue.domain.policy import NewConfig
from retinue.domain.subagent import Subagent
from retinue.steward.configuring import configuration
from retinue.steward.params import LARGEST, Params
from retinue.steward.requests import request_of
from retinue.steward.rows import begun, other_time, remarks, spawned_row, subagent_row, unmet
from retinue.wire import views
from retinue.wire.event import event_to_json
from retinue.wire.joined import joined_to_json, joined_to_markdown, never_started
from retinue.wire.result import batch_to_json, result_to_json

LIST_LIMIT = 50
MOST = 1_000_000

Verb = Callable[[App, Params], Awaitable[Any]]
Stream = Callable[[App, Params], AsyncGenerator[Any, None]]


async def task_create(app: App, params: Params) -> Any:
    title, description = params.text("title"), params.text("description", "")
    name = params.text("task_id", "")
    config = NewConfig(
        document=configuration(app, params),
        max_concurrent=params.raw("max_concurrent"),
        timeout_seconds=params.raw("timeout_seconds"),
    )
    params.done()
    task = app.service.tasks.create(title=title, description=description, config=config, name=name)
    return {"task_id": task.id, "path": str(app.folders.folder(task.id))} | unmet(app, task.id)


async def task_list(app: App, params: Params) -> Any:
    limit = params.count("limit", LIST_LIMIT, MOST)
    params.done()
    return [views.task_to_json(*found) for found in app.service.tasks.newest(limit)]


async def task_show(app: App, params: Params) -> Any:
    task, limit = params.task(), params.count("limit", LIST_LIMIT, MOST)
    params.done()
    known, counts = app.service.tasks.show(task)
    roll = app.service.subagents.roll(task, limit=limit)
    return {
        **app.folders.file(known.id).document(),
        "roster": views.roster_to_json(roll),
        **views.task_to_json(known, counts),
        "path": str(app.folders.folder(known.id)),
        "gates": [views.gate_to_json(gate) for gate in app.pages.open_gates(known.id)],
        "metrics": views.totals_to_json(app.records.totals(known.id)),
        "subagents": [subagent_row(app, subagent) for subagent in roll],
        "not_started": never_started(app.service.tasks.end_of(known)),
    } | trouble(app, known.id)


async def task_events(app: App, params: Params) -> AsyncGenerator[Any, None]:
    task = params.task()
    after = params.count("since", 0, LARGEST)
    limit = params.count("limit", MOST, MOST)
    prefix, follow = params.text("type_prefix", ""), params.flag("follow")
    params.done()
    every = app.service.waiting.follow(task, after=after) if follow else _so_far(app, task, after)
    sent = 0
    async for recorded in every:
        if sent < limit and recorded.event.type.startswith(prefix):
            sent += 1
            yield event_to_json(recorded)
        if sent >= limit:
            return


async def _so_far(app: App, task: TaskId, after: int) -> AsyncGenerator[Recorded, None]:
    while page := app.service.tasks.events(task, after=after, limit=500):
        for recorded in page:
            yield recorded
        after = page[-1].seq


async def task_join(app: App, params: Params) -> Any:
    task = params.task()
    params.done()
    joined = app.service.tasks.join(task)
    document = joined_to_json(joined.task, joined.outcome, joined.parts, joined.details)
    app.folders.write_reports(joined.task.id, document, joined_to_markdown(document))
    return document


async def task_cancel(app: App, params: Params) -> Any:
    task, by = params.task(), params.by()
    reason, kill = params.text("reason", ""), params.flag("kill")
    params.done()
    app.service.plans.stop(task, by=by, reason=reason)
    ended = await app.service.tasks.cancel(task, by=by, reason=reason, kill=kill)
    return {"task_id": task, "cancelled": ended}


async def task_close(app: App, params: Params) -> Any:
    task, by = params.task(), params.by()
    params.done()
    closed = await app.service.plans.close(task, by=by)
    return views.task_to_json(closed, app.records.counts(closed.id))


async def subagent_spawn(app: App, params: Params) -> Any:
    task, wait = params.task(), params.flag("wait")
    handle = params.flag("handle")  # whoever asks waits for them in another call
    request = request_of(app, params, by=params.by(), background=not wait and not handle)
    request = replace(request, queue=params.flag("queue"))
    params.done()
    spawning = app.service.spawning
    subagents = await spawning.admit(task, request)
    heard = remarks(app, task, subagents, request.briefs)
    if wait:
        return batch_to_json(await spawning.attend(subagents)) | heard
    return begun(app, await spawning.up(subagents)) | heard


async def subagent_list(app: App, params: Params) -> Any:
    task, limit = params.task(), params.count("limit", LIST_LIMIT, MOST)
    params.done()
    return [subagent_row(app, each) for each in app.service.subagents.roll(task, limit=limit)]


async def subagent_show(app: App, params: Params) -> Any:
    task, name = params.task(), params.text("subagent")
    params.done()
    return shown(app, app.service.subagents.get(task, name))


def shown(app: App, subagent: Subagent) -> dict[str, Any]:
    """Everything that is known of one subagent."""
    view = subagent_row(app, subagent) | {
        "contract": views.contract_to_json(subagent),
        "contract_sha256": subagent.contract_sha256,
        "attempts": list(map(views.attempt_to_json, app.service.supervisor.attempts(subagent))),
    }
    if (result := app.records.result(subagent)) is not None:
        view["result"] = result_to_json(result)
    return view


async def subagent_result(app: App, params: Params) -> Any:
    task, name = params.task(), params.text("subagent")
    params.done()
    return result_to_json(app.service.subagents.result(task, name))


async def subagent_logs(app: App, params: Params) -> Any:
    task, name = params.task(), params.text("subagent")
    params.done()
    subagent = app.service.subagents.get(task, name)
    folder = app.workspaces.runtime_folder_of(subagent)
    return {
        "stdout": str(folder / "stdout.log"),
        "stderr": str(folder / "stderr.log"),
        "status": subagent.standing.status,
    }


async def wait_any(app: App, params: Params) -> Any:
    task, timeout = params.task(), params.number("timeout_seconds")
    consumer, peek = params.text("consumer", "default"), params.flag("peek")
    params.done()
    settled = await app.service.waiting.wait_any(
        task, timeout=timeout, consumer=consumer, peek=peek
    )
    if not peek:
        params.if_lost = lambda: app.service.waiting.undeliver(settled, consumer)
    return _settled(settled)


async def wait_all(app: App, params: Params) -> Any:
    task, timeout = params.task(), params.number("timeout_seconds")
    params.done()
    await app.service.waiting.wait_all(task, timeout=timeout)
    return [_settled(each) for each in app.service.subagents.roll(task, limit=MOST)]


async def subagent_cancel(app: App, params: Params) -> Any:
    task, name, by = params.task(), params.text("subagent"), params.by()
    reason, kill = params.text("reason", ""), params.flag("kill")
    params.done()
    result = await app.service.subagents.cancel(task, name, by=by, reason=reason, kill=kill)
    return {
        "agentInstance": result.subagent_id,
        "cancelled": True,
        "result": result_to_json(result),
    }


async def subagent_continue(app: App, params: Params) -> Any:
    wait = params.flag("wait")
    subagent, heard = await _continued(app, params, background=not wait)
    if not wait:
        return spawned_row(app, subagent) | heard
    (result,) = await app.service.spawning.attend([subagent])
    return result_to_json(result) | heard


async def continue_attended(app: App, params: Params) -> AsyncGenerator[Any, None]:
    """Who goes on, then its result. If its caller is gone before, it is cancelled."""
    subagent, heard = await _continued(app, params, background=False)
    attending = asyncio.ensure_future(app.service.spawning.attend([subagent]))
    try:
        yield spawned_row(app, subagent) | heard
        (result,) = await attending
    finally:
        attending.cancel()
        await asyncio.wait([attending])
    yield result_to_json(result) | heard


async def _continued(app: App, params: Params, background: bool) -> tuple[Subagent, Any]:
    task, name, by = params.task(), params.text("subagent"), params.by()
    message, timeout = params.text("message"), params.number("timeout_seconds")
    params.done()
    subagent = await app.service.spawning.continue_(
        task, name, message, by=by, timeout=timeout, background=background
    )
    return subagent, other_time(subagent, name, timeout)


async def subagent_close(app: App, params: Params) -> Any:
    task, name, by = params.task(), params.text("subagent"), params.by()
    params.done()
    return subagent_row(app, await app.service.subagents.close(task, name, by=by))


async def gate_list(app: App, params: Params) -> Any:
    """Every gate of a task; without one, what is open in any."""
    task = TaskId(params.text("task", ""))
    params.done()
    if task:
        known = app.records.task(task).id
        found = [(known, gate) for gate in app.service.subagents.gates(known)]
    else:
        found = app.pages.all_open_gates()
    return [{"task_id": name} | views.gate_to_json(gate) for name, gate in found]


VERBS: dict[str, Verb] = {
    "task.create": task_create,
    "task.list": task_list,
    "task.show": task_show,
    "task.join": task_join,
    "task.cancel": task_cancel,
    "task.close": task_close,
    "subagent.spawn": subagent_spawn,
    "subagent.list": subagent_list,
    "subagent.show": subagent_show,
    "subagent.result": subagent_result,
    "subagent.logs": subagent_logs,
    "subagent.wait_any": wait_any,
    "subagent.wait_all": wait_all,
    "subagent.cancel": subagent_cancel,
    "subagent.continue": subagent_continue,
    "subagent.close": subagent_close,
    "gate.list": gate_list,
}
FOLLOWED: dict[str, Stream] = {
    "task.events": task_events,
    "subagent.attend_continued": continue_attended,
}


def trouble(app: App, task: TaskId) -> dict[str, str]:
    """What is wrong with the configuration that people left in task.yaml, if anything is."""
    try:
        app.folders.file(task).config()
    except BadInput as error:
        return {"problem": error.message}
    return {}


def _settled(subagent: Subagent) -> dict[str, str]:
    return {"agentInstance": subagent.id, "status": subagent.standing.status}
