"""Verbs about tasks and their configurations: JSON parameters in, a JSON document out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from retinue.core.errors import BadInput, RetinueError
from retinue.core.events import Recorded
from retinue.core.ids import TaskId
from retinue.core.task_config import NewConfig, TaskConfig
from retinue.formats import views_json
from retinue.formats.config_document import (
    build_task_section,
    parse_config,
    parse_task_config,
)
from retinue.formats.event_json import event_to_view
from retinue.formats.views_json import joined_to_json, joined_to_markdown, list_not_started
from retinue.steward.app import App
from retinue.steward.maintenance import load_config_document
from retinue.steward.task_service import NewTask
from retinue.steward.verbs.params import LARGEST, LIST_LIMIT, MOST, Params, take_closed_limit
from retinue.steward.verbs.subagent_rows import collect_warnings, make_subagent_row

EVENTS_AT_ONCE = 500
# In the root: the configuration of tasks that are created without one
DEFAULT = "config.yaml"

# Codes of refusals that a change of the configuration can resolve
CONFIGURABLE = frozenset(
    {
        "access_not_enforced",
        "agent_not_installed",
        "background_disabled",
        "context_outside",
        "invalid_team",
        "isolation_unavailable",
        "limit_too_wide",
        "network_needed",
        "no_backend",
        "no_key",
        "no_login",
        "server_not_ready",
        "server_unreachable",
        "too_many_tasks",
        "unknown_provider",
        "unknown_type",
        "wire_mismatch",
    }
)

Verb = Callable[[App, Params], Awaitable[Any]]

Stream = Callable[[App, Params], AsyncGenerator[Any, None]]


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
    task_config = parse_new_config(app, config)
    return NewTask(title=title, config=config, task_config=task_config), where


def parse_new_config(app: App, config: NewConfig) -> TaskConfig:
    """Return the configuration that a task will have if it is created with this one.

    Raises:
        BadInput: the configuration is invalid; names the full key.
    """
    section = build_task_section(config.document, max_concurrent=config.max_concurrent)
    return app.folders.complete_config(parse_task_config(section, where="config"))


def find_configuration_source(app: App, params: Params) -> str:
    """Return the name of the configuration file for a new task; take no parameter."""
    if params.peek("config_text"):
        return str(params.peek("config_name") or "the given configuration")
    default = app.settings.root / DEFAULT
    return f"{default}" if default.is_file() else f"{default}, which does not exist yet"


def find_stored_configuration(app: App, task: TaskId) -> str:
    """Return the name of the configuration file of an existing task."""
    task_id = app.records.get_task(task).id
    return f"{app.folders.get_config_file(task_id)} of task {task_id}"


@contextmanager
def add_configuration_hint(find_where: Callable[[], str]) -> Iterator[None]:
    """Add the name of the configuration file to the hint of a refusal that depends on it."""
    try:
        yield
    except RetinueError as error:
        if error.code not in CONFIGURABLE:
            raise
        raise error.with_more(f"the configuration in use is {find_where()}") from None


def load_configuration(app: App, params: Params) -> dict[str, Any]:
    """Return the configuration for a new task: the given one, else that of the root.

    Raises:
        BadInput: the configuration is invalid.
    """
    text = params.take_text("config_text", "")
    where = params.take_text("config_name", "configuration")
    document, where, lines = load_config_document(app, text, where)
    if not isinstance(document, dict):
        raise BadInput(f"{where}: a configuration must be a mapping", code="bad_config")
    parsed = parse_config(document, where=where, lines=lines)
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
    text = params.take_text("text", "")
    params.refuse_unknown()
    return [views_json.task_to_json(*found) for found in app.tasks.list_newest(limit, text=text)]


async def show_task(app: App, params: Params) -> Any:
    task = params.take_task()
    limit = take_closed_limit(params)
    params.refuse_unknown()
    task_record, counts = app.tasks.show(task)
    roll = app.subagents.list_subagents(task, limit=limit).subagents
    return {
        **app.folders.get_file(task_record.id).read_document(),
        "roster": views_json.roster_to_json(roll),
        **views_json.task_to_json(task_record, counts),
        "path": str(app.folders.get_folder(task_record.id)),
        "last_seq": task_record.last_seq,
        "gates": [
            views_json.gate_to_json(gate) for gate in app.pages.list_open_gates(task_record.id)
        ],
        "metrics": views_json.totals_to_json(app.records.sum_totals(task_record.id)),
        "subagents": [make_subagent_row(app, subagent) for subagent in roll],
        "subagents_total": counts.total,
        "subagents_shown": len(roll),
        "not_started": list_not_started(app.tasks.find_end(task_record)),
    } | check_task_file(app, task_record.id)


def check_task_file(app: App, task: TaskId) -> dict[str, str]:
    """Return the problem with a task.yaml that was edited by hand, if it has one."""
    try:
        app.folders.get_file(task).read_config()
    except BadInput as error:
        return {"problem": error.message}
    return {}


async def stream_events(app: App, params: Params) -> AsyncGenerator[Any, None]:
    task = params.take_task()
    after = params.take_count("since", 0, LARGEST)
    limit = params.take_count("limit", MOST, MOST)
    prefix = params.take_text("type_prefix", "")
    follow = params.take_flag("follow")
    params.refuse_unknown()
    # Without the lock the root is read-only: no further event will ever come.
    follow = follow and app.lock is not None
    sent = 0
    async for recorded in _iter_events(app, task, after, follow=follow):
        if sent < limit and recorded.event.type.startswith(prefix):
            sent += 1
            yield event_to_view(recorded)
        if sent >= limit:
            return


async def _iter_events(
    app: App, task: TaskId, after: int, *, follow: bool
) -> AsyncGenerator[Recorded, None]:
    """Yield the events after `after`; with `follow`, also new ones until the task is closed."""
    task_id = app.records.get_task(task).id
    while True:
        # Subscribe before reading: an event recorded in between is not missed.
        change = app.journal.expect_change(task_id)
        try:
            while page := app.records.list_events(task_id, after=after, limit=EVENTS_AT_ONCE):
                for recorded in page:
                    yield recorded
                after = page[-1].seq
            if not follow or app.records.get_task(task_id).state == "closed":
                return
            await change
        finally:
            change.cancel()


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


TASK_VERBS: dict[str, Verb] = {
    "task.create": create_task,
    "task.list": list_tasks,
    "task.show": show_task,
    "task.join": join_task,
    "task.cancel": cancel_task,
    "task.close": close_task,
}
TASK_STREAMS: dict[str, Stream] = {"task.events": stream_events}
