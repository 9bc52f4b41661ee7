"""Verbs about tasks, subagents and gates: JSON parameters in, a JSON document out."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from retinue.core.errors import BadInput, RetinueError
from retinue.core.events import Recorded
from retinue.core.ids import TaskId
from retinue.core.policy import NewConfig
from retinue.core.subagent import Subagent
from retinue.formats import views_json
from retinue.formats.config_document import (
    build_task_section,
    named_in,
    parse_config,
    parse_task_config,
)
from retinue.formats.event_json import event_to_view
from retinue.formats.result_json import batch_to_json, result_to_json
from retinue.formats.views_json import joined_to_json, joined_to_markdown, list_not_started
from retinue.formats.yaml_document import Place, load_yaml
from retinue.steward.app import App
from retinue.steward.task_service import NewTask, mark_removed_workspace
from retinue.steward.verbs.params import LARGEST, Params
from retinue.steward.verbs.spawn_requests import (
    collect_spawn_warnings,
    collect_timeout_warning,
    collect_warnings,
    describe_background_spawn,
    list_rows,
    make_spawned_row,
    make_subagent_row,
    parse_request,
)
from retinue.trust import find_config_file, require_approved

# In the root: the configuration of tasks that are created without one
DEFAULT = "config.yaml"
# Codes of refusals that a change of the configuration can resolve
CONFIGURABLE = frozenset(
    {
        "background_disabled",
        "invalid_team",
        "isolation_unavailable",
        "no_backend",
        "no_key",
        "too_many_tasks",
        "unknown_type",
    }
)


def parse_new_task(app: App, given: Any) -> tuple[NewTask, str] | None:
    """Return the task that a spawn creates if it does not exist, and its configuration file.

    Raises:
        BadInput: a parameter or the configuration is invalid.
    """
    if given is None:
        return None
    params = Params(given)
    title = params.take_text("title")
    where = find_configuration_source(app, params)
    config = NewConfig(document=load_configuration(app, params))
    params.refuse_unknown()
    section = build_task_section(config.document)
    policy = app.folders.complete_config(parse_task_config(section, where="config"))
    return NewTask(title=title, config=config, policy=policy), where


def find_configuration_source(app: App, params: Params) -> str:
    """Return the name of the configuration file for a new task; take no parameter."""
    if params.peek("config_text"):
        return str(params.peek("config_name") or "the given configuration")
    default = app.settings.root / DEFAULT
    return f"{default}" if default.is_file() else f"{default}, which does not exist yet"


def find_stored_configuration(app: App, task: TaskId) -> str:
    """Return the name of the configuration file of an existing task."""
    known = app.records.get_task(task).id
    return f"{app.folders.get_config_file(known)} of task {known}"


@contextmanager
def add_configuration_hint(where: str) -> Iterator[None]:
    """Add the name of the configuration file to the hint of a refusal that depends on it."""
    try:
        yield
    except RetinueError as error:
        if error.code not in CONFIGURABLE:
            raise
        raise error.with_more(f"the configuration in use is {where}") from None


def load_configuration(app: App, params: Params) -> dict[str, Any]:
    """Return the configuration for a new task: the given one, else that of the root.

    Raises:
        BadInput: the configuration is invalid.
    """
    text = params.take_text("config_text", "")
    where = params.take_text("config_name", "configuration")
    root = app.settings.root
    default = None if text else find_config_file(root, os.environ)
    if default is not None:
        text = default.read_text()
        where = str(default)
    lines: dict[Place, int] = {}
    document = load_yaml(text, where=where, lines=lines) if text else {}
    if not isinstance(document, dict):
        raise BadInput(f"{where}: a configuration must be a mapping", code="bad_config")
    parsed = parse_config(document, where=where, lines=lines)
    # A file in the root may have come with a clone: it may read only approved variables.
    if default is not None:
        require_approved(named_in(document).variables, root, os.environ)
    traffic = parsed.orchestrator.coordination.subagent_traffic
    if traffic.mode == "replay":
        _require_recordings(app.settings.project / traffic.folder)
    return document


def _require_recordings(folder: Path) -> None:
    """Raises:
    BadInput: the folder of recordings does not exist.
    """
    if not folder.is_dir():
        raise BadInput(
            f"subagent_traffic.folder: there is no folder {str(folder)!a} to replay from",
            code="bad_config",
            hint="'mode: record' creates one in the root, tasks/TASK/traffic; relative paths start "
            "at the project",
        )


LIST_LIMIT = 50
MOST = 1_000_000

Verb = Callable[[App, Params], Awaitable[Any]]
Stream = Callable[[App, Params], AsyncGenerator[Any, None]]


async def create_task(app: App, params: Params) -> Any:
    title = params.take_text("title")
    description = params.take_text("description", "")
    name = params.take_text("task_id", "")
    config = NewConfig(
        document=load_configuration(app, params),
        max_concurrent=params.take_raw("max_concurrent"),
        timeout_seconds=params.take_raw("timeout_seconds"),
    )
    params.refuse_unknown()
    task = app.tasks.create(title=title, description=description, config=config, name=name)
    return {"task_id": task.id, "path": str(app.folders.get_folder(task.id))} | collect_warnings(
        app, task.id
    )


async def list_tasks(app: App, params: Params) -> Any:
    limit = params.take_count("limit", LIST_LIMIT, MOST)
    params.refuse_unknown()
    return [views_json.task_to_json(*found) for found in app.tasks.list_newest(limit)]


async def show_task(app: App, params: Params) -> Any:
    task = params.take_task()
    limit = take_closed_limit(params)
    params.refuse_unknown()
    known, counts = app.tasks.show(task)
    roll = app.subagents.list_subagents(task, limit=limit).subagents
    return {
        **app.folders.get_file(known.id).read_document(),
        "roster": views_json.roster_to_json(roll),
        **views_json.task_to_json(known, counts),
        "path": str(app.folders.get_folder(known.id)),
        "gates": [views_json.gate_to_json(gate) for gate in app.pages.list_open_gates(known.id)],
        "metrics": views_json.totals_to_json(app.records.sum_totals(known.id)),
        "subagents": [make_subagent_row(app, subagent) for subagent in roll],
        "subagents_total": counts.total,
        "subagents_shown": len(roll),
        "not_started": list_not_started(app.tasks.find_end(known)),
    } | check_task_file(app, known.id)


async def stream_events(app: App, params: Params) -> AsyncGenerator[Any, None]:
    task = params.take_task()
    after = params.take_count("since", 0, LARGEST)
    limit = params.take_count("limit", MOST, MOST)
    prefix = params.take_text("type_prefix", "")
    follow = params.take_flag("follow")
    params.refuse_unknown()
    # Without the lock the root is read-only: no further event will ever come.
    follow = follow and app.lock is not None
    every = app.waiting.follow(task, after=after) if follow else _stream_recorded(app, task, after)
    sent = 0
    async for recorded in every:
        if sent < limit and recorded.event.type.startswith(prefix):
            sent += 1
            yield event_to_view(recorded)
        if sent >= limit:
            return


async def _stream_recorded(app: App, task: TaskId, after: int) -> AsyncGenerator[Recorded, None]:
    while page := app.tasks.list_events(task, after=after, limit=500):
        for recorded in page:
            yield recorded
        after = page[-1].seq


async def join_task(app: App, params: Params) -> Any:
    task = params.take_task()
    params.refuse_unknown()
    joined = app.tasks.join(task)
    document = joined_to_json(joined.task, joined.outcome, joined.parts, joined.details)
    app.folders.write_reports(joined.task.id, document, joined_to_markdown(document))
    return document


async def cancel_task(app: App, params: Params) -> Any:
    task = params.take_task()
    by = params.get_actor()
    reason = params.take_text("reason", "")
    kill = params.take_flag("kill")
    params.refuse_unknown()
    # First the plan, so that it starts no further step while the subagents are cancelled.
    app.plans.stop(task, by=by, reason=reason)
    ended = await app.tasks.cancel(task, by=by, reason=reason, kill=kill)
    return {"task_id": task, "cancelled": ended}


async def close_task(app: App, params: Params) -> Any:
    task = params.take_task()
    by = params.get_actor()
    params.refuse_unknown()
    # Read before the close, which ends blocked subagents without an answer; the caller is warned.
    blocked = [
        s.id for s in app.records.list_unclosed(app.records.get_task(task).id) if s.standing.blocked
    ]
    closed = await app.plans.close(task, by=by)
    document = views_json.task_to_json(closed, app.records.count_by_status(closed.id))
    after = [app.records.get_subagent(closed.id, name) for name in blocked]
    return document | views_json.unresolved_to_json(after)


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
    with add_configuration_hint(find_stored_configuration(app, task)):
        subagents = await spawning.admit(task, request)
    # In a repeated request, subagents that have ended are no surprise to the caller.
    heard = (
        collect_warnings(app, task)
        if again
        else collect_spawn_warnings(app, task, subagents, request.briefs)
    )
    if wait:
        return batch_to_json(await spawning.wait_results(subagents)) | heard
    return describe_background_spawn(app, await spawning.wait_up(subagents)) | heard


async def list_subagents(app: App, params: Params) -> Any:
    task = params.take_task()
    limit = take_closed_limit(params)
    page = params.take_flag("page")
    params.refuse_unknown()
    return list_rows(app, app.subagents.list_subagents(task, limit=limit), page=page)


def take_closed_limit(params: Params, default: int = LIST_LIMIT, most: int = MOST) -> int | None:
    """Return how many closed subagents to list; None with `all`."""
    limit = params.take_count("limit", default, most)
    return None if params.take_flag("all") else limit


async def show_subagent(app: App, params: Params) -> Any:
    task = params.take_task()
    name = params.take_text("subagent")
    params.refuse_unknown()
    return describe_subagent(app, app.subagents.get(task, name))


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
    subagent = app.subagents.get(task, name)
    folder = app.workspaces.find_runtime_folder(subagent)
    return {
        "stdout": str(folder / "stdout.log"),
        "stderr": str(folder / "stderr.log"),
        "status": subagent.standing.status,
    }


async def wait_any(app: App, params: Params) -> Any:
    task = params.take_task()
    timeout = params.take_number("timeout_seconds")
    consumer = params.take_text("consumer", "default")
    peek = params.take_flag("peek")
    params.refuse_unknown()
    settled = await app.waiting.wait_any(task, timeout=timeout, consumer=consumer, peek=peek)
    # If the response cannot be sent, the result goes back to the queue of this consumer.
    if not peek:
        params.if_lost = lambda: app.waiting.revoke_delivery(settled, consumer)
    return _describe_settled(settled)


async def wait_all(app: App, params: Params) -> Any:
    task = params.take_task()
    timeout = params.take_number("timeout_seconds")
    params.refuse_unknown()
    await app.waiting.wait_all(task, timeout=timeout)
    everyone = app.subagents.list_subagents(task, limit=None).subagents
    return [_describe_settled(each) for each in everyone]


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
    subagent, heard = await _continue_subagent(app, params, background=not wait)
    if not wait:
        return make_spawned_row(app, subagent) | heard
    (result,) = await app.spawning.wait_results([subagent])
    return result_to_json(result) | heard


async def continue_attended(app: App, params: Params) -> AsyncGenerator[Any, None]:
    """Yield the continued subagent, then its result; cancel it if the caller disconnects."""
    subagent, heard = await _continue_subagent(app, params, background=False)
    # Started before the first item is sent, so that a disconnect at any time cancels it.
    attending = asyncio.ensure_future(app.spawning.wait_results([subagent]))
    try:
        yield make_spawned_row(app, subagent) | heard
        (result,) = await attending
    finally:
        attending.cancel()
        await asyncio.wait([attending])
    yield result_to_json(result) | heard


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
    (result,) = await app.spawning.wait_results([app.subagents.get(task, name)])
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
        known = app.records.get_task(task).id
        found = [(known, gate) for gate in app.subagents.list_gates(known)]
    else:
        found = app.pages.list_all_open_gates()
    return [{"task_id": name} | views_json.gate_to_json(gate) for name, gate in found]


VERBS: dict[str, Verb] = {
    "task.create": create_task,
    "task.list": list_tasks,
    "task.show": show_task,
    "task.join": join_task,
    "task.cancel": cancel_task,
    "task.close": close_task,
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
FOLLOWED: dict[str, Stream] = {
    "task.events": stream_events,
    "subagent.attend_continued": continue_attended,
}


def check_task_file(app: App, task: TaskId) -> dict[str, str]:
    """Return the problem with a task.yaml that was edited by hand, if it has one."""
    try:
        app.folders.get_file(task).read_config()
    except BadInput as error:
        return {"problem": error.message}
    return {}


def _describe_settled(subagent: Subagent) -> dict[str, str]:
    return {"agentInstance": subagent.id, "status": subagent.standing.status}
