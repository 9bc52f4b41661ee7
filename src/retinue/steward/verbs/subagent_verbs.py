"""Verbs about subagents: spawn, list, show, wait, cancel, continue, close."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from retinue.core.ids import TaskId
from retinue.core.subagent import Subagent
from retinue.formats import views_json
from retinue.formats.contract_json import parse_briefs, request_sha256
from retinue.formats.result_json import batch_to_json, result_to_json
from retinue.steward.app import App
from retinue.steward.contract_factory import SpawnRequest
from retinue.steward.task_service import mark_removed_workspace
from retinue.steward.verbs.params import Params, parse_folder, take_closed_limit
from retinue.steward.verbs.subagent_rows import (
    collect_spawn_warnings,
    collect_timeout_warning,
    collect_warnings,
    describe_background_spawn,
    list_rows,
    make_spawned_row,
    make_subagent_row,
)
from retinue.steward.verbs.task_verbs import (
    Stream,
    Verb,
    add_configuration_hint,
    find_stored_configuration,
)


def parse_request(
    app: App, params: Params, *, by: str, background: bool, child: Subagent | None = None
) -> SpawnRequest:
    """Return the spawn request of a call.

    Args:
        child: the subagent that delegates. Its paths are relative to its own workspace.
    """
    briefs = parse_briefs(params.take_raw("tasks"))
    key = params.take_text("key", "")
    if child is None:
        base = parse_folder(params.take_text("cwd", str(app.settings.project)))
    else:
        # A child must not choose its base folder: the parameter is dropped.
        params.take_raw("cwd")
        base = app.workspaces.find_workspace(child)
    return SpawnRequest(
        briefs=briefs,
        base=base,
        by=by,
        parent=child,
        key=key,
        sha256=request_sha256(briefs) if key else "",
        background=background,
    )


async def spawn_subagents(app: App, params: Params) -> Any:
    task = params.take_task()
    wait = params.take_flag("wait")
    # handle: the caller waits for the results in another call.
    handle = params.take_flag("handle")
    # again: the request is repeated because the first steward was lost.
    again = params.take_flag("again")
    request = parse_request(app, params, by=params.get_actor(), background=not wait and not handle)
    request = replace(request, queue=params.take_flag("queue"))
    params.refuse_unknown()
    spawning = app.spawning
    with add_configuration_hint(lambda: find_stored_configuration(app, task)):
        subagents = await spawning.admit(task, request)
    # In a repeated request, subagents that have ended are no surprise to the caller.
    warnings = (
        collect_warnings(app, task)
        if again
        else collect_spawn_warnings(app, task, subagents, request.briefs)
    )
    if wait:
        return batch_to_json(await spawning.wait_results(subagents)) | warnings
    return describe_background_spawn(app, await spawning.wait_up(subagents)) | warnings


async def list_subagents(app: App, params: Params) -> Any:
    task = params.take_task()
    limit = take_closed_limit(params)
    page = params.take_flag("page")
    params.refuse_unknown()
    return list_rows(app, app.subagents.list_subagents(task, limit=limit), page=page)


async def show_subagent(app: App, params: Params) -> Any:
    task = params.take_task()
    name = params.take_text("subagent")
    params.refuse_unknown()
    return describe_subagent(app, app.records.get_subagent(task, name))


def describe_subagent(app: App, subagent: Subagent) -> dict[str, Any]:
    """Return a subagent's row with its contract, attempts and result."""
    view = make_subagent_row(app, subagent) | {
        "contract": views_json.contract_to_json(subagent),
        "contract_sha256": subagent.contract_sha256,
        "attempts": list(map(views_json.attempt_to_json, app.supervisor.list_attempts(subagent))),
    }
    if (result := app.records.get_result(subagent)) is not None:
        view["result"] = result_to_json(mark_removed_workspace(subagent, result, app.folders))
    return view


async def get_result(app: App, params: Params) -> Any:
    task = params.take_task()
    name = params.take_text("subagent")
    params.refuse_unknown()
    return result_to_json(app.subagents.get_result(task, name))


async def find_logs(app: App, params: Params) -> Any:
    task = params.take_task()
    name = params.take_text("subagent")
    params.refuse_unknown()
    subagent = app.records.get_subagent(task, name)
    folder = app.workspaces.find_runtime_folder(subagent)
    return {
        "stdout": str(folder / "stdout.log"),
        "stderr": str(folder / "stderr.log"),
        "status": subagent.standing.status,
        # Whole ids: the request may have the beginnings of them, or @last.
        "task_id": subagent.task,
        "agentInstance": subagent.id,
    }


async def wait_any(app: App, params: Params) -> Any:
    task = params.take_task()
    timeout = params.take_number("timeout_seconds")
    consumer = params.take_text("consumer", "default")
    peek = params.take_flag("peek")
    params.refuse_unknown()
    settled = await app.delivery.wait_any(task, timeout=timeout, consumer=consumer, peek=peek)
    # If the response cannot be sent, the result goes back to the queue of this consumer.
    if not peek:
        params.on_lost = lambda: app.delivery.return_results([settled], consumer)
    return _describe_settled(settled)


async def wait_all(app: App, params: Params) -> Any:
    task = params.take_task()
    timeout = params.take_number("timeout_seconds")
    params.refuse_unknown()
    await app.delivery.wait_all(task, timeout=timeout)
    found = app.subagents.list_subagents(task, limit=None).subagents
    return [_describe_settled(each) for each in found]


def _describe_settled(subagent: Subagent) -> dict[str, str]:
    return {"agentInstance": subagent.id, "status": subagent.standing.status}


async def cancel_subagent(app: App, params: Params) -> Any:
    task = params.take_task()
    name = params.take_text("subagent")
    by = params.get_actor()
    reason = params.take_text("reason", "")
    kill = params.take_flag("kill")
    params.refuse_unknown()
    result = await app.subagents.cancel(task, name, by=by, reason=reason, kill=kill)
    return {
        "agentInstance": result.subagent_id,
        "cancelled": True,
        "result": result_to_json(result),
    }


async def continue_subagent(app: App, params: Params) -> Any:
    wait = params.take_flag("wait")
    subagent, warnings = await _continue_subagent(app, params, background=not wait)
    if not wait:
        return make_spawned_row(app, subagent) | warnings
    (result,) = await app.spawning.wait_results([subagent])
    return result_to_json(result) | warnings


async def continue_attended(app: App, params: Params) -> AsyncGenerator[Any, None]:
    """Yield the continued subagent, then its result; cancel it if the caller disconnects."""
    subagent, warnings = await _continue_subagent(app, params, background=False)
    # Started before the first item is sent, so that a disconnect at any time cancels it.
    attending = asyncio.ensure_future(app.spawning.wait_results([subagent]))
    try:
        yield make_spawned_row(app, subagent) | warnings
        (result,) = await attending
    finally:
        attending.cancel()
        await asyncio.wait([attending])
    yield result_to_json(result) | warnings


async def _continue_subagent(app: App, params: Params, background: bool) -> tuple[Subagent, Any]:
    task = params.take_task()
    name = params.take_text("subagent")
    by = params.get_actor()
    message = params.take_text("message")
    timeout = params.take_number("timeout_seconds")
    params.refuse_unknown()
    subagent = await app.spawning.continue_(
        task, name, message, by=by, timeout=timeout, background=background
    )
    return subagent, collect_timeout_warning(subagent, message, timeout)


async def await_subagent(app: App, params: Params) -> Any:
    """Wait for the result of a subagent; cancel it if the caller disconnects."""
    task = params.take_task()
    name = params.take_text("subagent")
    params.refuse_unknown()
    (result,) = await app.spawning.wait_results([app.records.get_subagent(task, name)])
    return result_to_json(result)


async def close_subagent(app: App, params: Params) -> Any:
    task = params.take_task()
    name = params.take_text("subagent")
    by = params.get_actor()
    params.refuse_unknown()
    return make_subagent_row(app, await app.subagents.close(task, name, by=by))


async def list_gates(app: App, params: Params) -> Any:
    """Return all gates of a task; without a task, the open gates of all tasks."""
    task = TaskId(params.take_text("task", ""))
    params.refuse_unknown()
    if task:
        task_id = app.records.get_task(task).id
        found = [(task_id, gate) for gate in app.records.list_gates(task_id)]
    else:
        found = app.pages.list_all_open_gates()
    return [{"task_id": name} | views_json.gate_to_json(gate) for name, gate in found]


SUBAGENT_VERBS: dict[str, Verb] = {
    "subagent.spawn": spawn_subagents,
    "subagent.list": list_subagents,
    "subagent.show": show_subagent,
    "subagent.result": get_result,
    "subagent.logs": find_logs,
    "subagent.attend": await_subagent,
    "subagent.wait_any": wait_any,
    "subagent.wait_all": wait_all,
    "subagent.cancel": cancel_subagent,
    "subagent.continue": continue_subagent,
    "subagent.close": close_subagent,
    "gate.list": list_gates,
}
SUBAGENT_STREAMS: dict[str, Stream] = {"subagent.attend_continued": continue_attended}
