"""Verbs about runs of plans, and about output that waits to be joined."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Any

from retinue.app import App
from retinue.domain.contract import ROOT
from retinue.domain.defaults import LOCAL
from retinue.domain.errors import Refused
from retinue.domain.ids import TaskId
from retinue.domain.plan import unheld
from retinue.domain.policy import NewConfig, TaskConfig
from retinue.domain.subagent import LEFT
from retinue.service import GONE, Joined, RootRequest, RunRequest
from retinue.steward.configuring import configuration
from retinue.steward.params import Params, folder_of, texts_of
from retinue.steward.rows import subagent_row, unmet
from retinue.steward.verbs import Stream, Verb
from retinue.wire.config import parse_task_config, task_section
from retinue.wire.joined import joined_to_json, joined_to_markdown, never_started
from retinue.wire.plan import parse_plan, plan_to_json
from retinue.wire.result import batch_to_json
from retinue.wire.views import totals_to_json

# Where nothing is configured, who starts a run wants the team to delegate.
USUAL: dict[str, Any] = {"orchestrator": {"coordination": {"enable_subagents": True}}}
WORDS = {"succeeded": "completed", "failed": "failed", "running": "running"}


async def run_start(app: App, params: Params) -> Any:
    text, where = params.text("plan_text"), params.text("plan_name", "plan")
    folders = [_named(params, name) for name in ("plan_folder", "cwd")]
    config = NewConfig(
        document=configuration(app, params), max_concurrent=params.raw("max_concurrent")
    )
    plan = await asyncio.to_thread(parse_plan, text, where=where)  # it may be a long one
    section = task_section(config.document, max_concurrent=config.max_concurrent)
    request = RunRequest(
        plan=plan,
        document=plan_to_json(plan),
        folders=tuple(folder or app.settings.project for folder in folders),
        config=config,
        policy=app.folders.completed(parse_task_config(section, where="config")),
        by=params.by(),
        apply=params.flag("apply"),
        include_dirty=params.flag("include_dirty"),
    )
    keys = texts_of(params, "keys", "names of variables")
    params.done()
    if not all(step.command for step in plan.steps):
        _require_known(keys, request.policy)
    task = await app.service.plans.start(request)
    app.folders.keep_plan(task.id, text)
    started = {"task_id": task.id, "run_id": task.run, "status": "running"}
    return started | unmet(app, task.id, *unheld(plan))


async def run_begin(app: App, params: Params) -> Any:
    prompt, folder = params.text("prompt"), _named(params, "cwd")
    config = NewConfig(
        document=configuration(app, params) or USUAL, max_concurrent=params.raw("max_concurrent")
    )
    section = task_section(config.document, max_concurrent=config.max_concurrent)
    request = RootRequest(
        prompt=prompt,
        config=config,
        policy=app.folders.completed(parse_task_config(section, where="config")),
        base=folder or app.settings.project,
        by=params.by(),
    )
    keys = texts_of(params, "keys", "names of variables")
    params.done()
    _require_known(keys, request.policy)
    task = await app.service.roots.start(request)
    return {"task_id": task.id, "run_id": task.run, "status": "running"} | unmet(app, task.id)


async def run_wait(app: App, params: Params) -> Any:
    """What becomes of a run, which goes on when nobody waits for it any more."""
    task = params.task()
    params.done()
    return await _end(app, task)


async def run_attended(begin: Verb, app: App, params: Params) -> AsyncGenerator[Any, None]:
    """A run as it began, then its end. If its caller is gone before, it is cancelled.

    If the steward is, it goes on with the next.
    """
    started = await begin(app, params)
    task = TaskId(started["task_id"])
    try:
        yield started
        end = await _end(app, task)
    except (asyncio.CancelledError, GeneratorExit) as gone:
        if LEFT not in gone.args:
            await asyncio.shield(_abandon(app, task))
        raise
    yield end


async def _abandon(app: App, task: TaskId) -> None:
    app.service.plans.stop(task, by="parent", reason=GONE)
    await app.service.tasks.cancel(task, by="parent", reason=GONE)


async def _end(app: App, task: TaskId) -> Any:
    if app.service.roots.root_of(task) is None:
        return _ended(app, await app.service.plans.wait(task))
    end = await app.service.roots.wait(task)
    document = _ended(app, end)
    root = next(result for result in document["results"] if result["subagent_id"] == ROOT)
    delegated = [result for _, result in end.parts if result and result.subagent_id != ROOT]
    batch = batch_to_json(delegated)
    return (
        document
        | {"answer": root["answer"], "root": root}
        | {key: batch[key] for key in ("results", "summary")}
    )


async def subagent_integrate(app: App, params: Params) -> Any:
    task, name = params.task(), params.text("subagent")
    params.done()
    subagent = await app.service.plans.integrate(task, name)
    row = subagent_row(app, subagent)
    result = app.records.result(subagent)
    joined = dict(result.integration or {}) if result else {}
    return row | {"integration": joined, "success": row["status"] == "completed"}


RUNS: dict[str, Verb] = {
    "run.start": run_start,
    "run.begin": run_begin,
    "run.wait": run_wait,
    "subagent.integrate": subagent_integrate,
}
ATTENDED: dict[str, Stream] = {
    "run.attend_plan": partial(run_attended, run_start),
    "run.attend": partial(run_attended, run_begin),
}


def _ended(app: App, end: Joined) -> dict[str, Any]:
    app.projector.flush()  # whoever hears of the end finds its figures in the files
    document = joined_to_json(end.task, end.outcome, end.parts, end.details)
    app.folders.write_reports(end.task.id, document, joined_to_markdown(document))
    batch = batch_to_json([result for _, result in end.parts if result is not None])
    details: dict[str, Any] = {key: value for key, value in end.details.items() if key != "outcome"}
    return {
        "task_id": end.task.id,
        "run_id": end.task.run,
        "status": WORDS.get(end.outcome, end.outcome),
        "outcome": end.outcome,
        "branch": None,
        **details,
        "metrics": totals_to_json(app.records.totals(end.task.id)),
        "results": batch["results"],
        "summary": batch["summary"] | {"not_started": len(never_started(details))},
    }


def _require_known(keys: list[str], policy: TaskConfig) -> None:
    """Raises:
    Refused: the caller has a key, and the local model would answer because the steward has none.
    """
    by_default = not policy.staff.everyone
    if keys and by_default and policy.fallback[0].type == LOCAL:
        raise Refused(
            f"{keys[0][:80]} is set here, but not where the steward was started, so that the local "
            "model would answer",
            code="no_key",
            hint="'retinue steward stop': the next command starts one that knows it; for the local "
            "model, --config @demo",
        )


def _named(params: Params, name: str) -> Path | None:
    text = params.text(name, "")
    return folder_of(text, name) if text else None
