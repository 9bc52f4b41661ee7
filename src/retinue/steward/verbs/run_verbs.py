"""Verbs about runs of plans and teams, and about output that waits to be joined."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from retinue.core.command_variables import complete_paths, parse_secrets
from retinue.core.contract import ROOT
from retinue.core.default_models import LOCAL
from retinue.core.errors import BadInput, NotFound, Refused
from retinue.core.ids import TaskId
from retinue.core.plan import Plan, grant_secrets, list_unenforced
from retinue.core.plan_review import make_contest
from retinue.core.result import Result
from retinue.core.subagent import LEFT, Subagent
from retinue.core.task_config import NewConfig, TaskConfig
from retinue.formats.plan_document import load_stored_plan, parse_plan, plan_to_json
from retinue.formats.result_json import batch_to_json
from retinue.formats.views_json import (
    joined_to_json,
    joined_to_markdown,
    list_not_started,
    totals_to_json,
)
from retinue.steward.agent_staffing import name_members
from retinue.steward.app import App
from retinue.steward.default_team import choose_team
from retinue.steward.plan_service import RunRequest
from retinue.steward.spawning import GONE
from retinue.steward.task_service import JoinedTask
from retinue.steward.team_run import TeamRunRequest
from retinue.steward.verbs.params import Params, parse_folder, take_mapping, take_texts
from retinue.steward.verbs.subagent_rows import collect_warnings, make_subagent_row
from retinue.steward.verbs.task_verbs import (
    Stream,
    Verb,
    add_configuration_hint,
    find_configuration_source,
    load_configuration,
    parse_new_config,
)

BY_RULE = "rule"  # value of `answer_by`: no model wrote the answer
LONGEST_LINE = 200
LONGEST_TEXT = 2000  # characters of one part in a composed answer
MOST_PART_FILES = 20

Parts = Sequence[tuple[Subagent, Result | None]]


def describe_parts(app: App, parts: Parts) -> list[dict[str, Any]]:
    """Return for each delegated part its brief, the first line of its work and its files."""
    return [
        {
            "subagent_id": subagent.id,
            "brief": _get_brief(subagent),
            "status": result.status.value if result is not None else subagent.standing.status,
            "first_line": _find_first_line(_read_work(app, subagent, result)),
            "files": _list_files(app, subagent),
            "workspace": result.workspace if result is not None else "",
        }
        for subagent, result in _select_delegated(parts)
    ]


def compose_answer(app: App, parts: Parts) -> str:
    """Return the work of the parts below their briefs, in the order of delegation.

    Used if the lead's model cannot judge them; empty if no part has any.
    """
    found = [
        (_get_brief(subagent), _read_work(app, subagent, result))
        for subagent, result in _select_delegated(parts)
    ]
    return "\n\n".join(f"[{_find_first_line(brief)}]\n{work}" for brief, work in found if work)


def can_judge(lead: Subagent) -> bool:
    """Return whether the lead has any model besides the embedded one, which cannot judge text."""
    team = lead.contract.team
    return team is None or any(member.wire != LOCAL for member in team.members)


def _select_delegated(parts: Parts) -> list[tuple[Subagent, Result | None]]:
    return [part for part in parts if part[0].id != ROOT]


def _get_brief(subagent: Subagent) -> str:
    return subagent.contract.step.description or subagent.contract.step.title


def _read_work(app: App, subagent: Subagent, result: Result | None) -> str:
    """Return the text of the only file of a part; else its answer.

    The embedded model writes a file first and then a sentence about it. The file is the work.
    """
    files = _list_files(app, subagent)
    if len(files) == 1 and subagent.contract.team is not None and not can_judge(subagent):
        try:
            found = app.workspace_inspector.read_file(subagent, files[0])
        except NotFound:
            found = None
        text = found.data.decode("utf-8", "replace").strip() if found is not None else ""
        if text:
            return text[:LONGEST_TEXT]
    return (result.answer or "").strip()[:LONGEST_TEXT] if result is not None else ""


def _find_first_line(text: str) -> str:
    lines = (line.strip() for line in text.splitlines())
    return next(filter(None, lines), "")[:LONGEST_LINE]


def _list_files(app: App, subagent: Subagent) -> list[str]:
    found, _ = app.workspace_inspector.list_files(subagent)
    return [each.path for each in found[:MOST_PART_FILES]]


# Without a configuration, the team of a run may delegate.
DEFAULT_CONFIG: dict[str, Any] = {"orchestrator": {"coordination": {"enable_subagents": True}}}
STATUS_OF_OUTCOME = {"succeeded": "completed", "failed": "failed", "running": "running"}


async def start_plan_run(app: App, params: Params) -> Any:
    text = params.take_text("plan_text")
    where = params.take_text("plan_name", "plan")
    variables = take_mapping(params, "vars")
    # In a thread: a long plan would block the event loop.
    plan = await asyncio.to_thread(parse_plan, text, where=where, variables=variables)
    return await _start_plan(app, params, plan, text)


async def start_contest(app: App, params: Params, verify: list[str]) -> Any:
    """Start a run in which each agent works on the prompt and the best result is merged."""
    prompt = params.take_text("prompt")
    agents = take_texts(params, "agents", "names of coding agents")
    if not prompt.strip() or not agents:
        raise BadInput(
            "a verified run needs a prompt and an agent",
            code="invalid_request",
            hint="name one or more: --agent claude --agent codex",
        )
    plan = make_contest(prompt, agents, verify)
    # JSON is YAML, too.
    return await _start_plan(app, params, plan, json.dumps(plan_to_json(plan), indent=2))


async def _start_plan(app: App, params: Params, plan: Plan, text: str) -> Any:
    folders = [_take_folder(params, name) for name in ("plan_folder", "cwd")]
    secrets = parse_secrets(take_texts(params, "secrets", "names of secrets"), {}, "secrets")
    plan = grant_secrets(plan, complete_paths(secrets, folders[1] or app.settings.project))
    source = find_configuration_source(app, params)
    config = NewConfig(
        document=load_configuration(app, params), max_concurrent=params.take_raw("max_concurrent")
    )
    request = RunRequest(
        plan=plan,
        text=text,
        document=plan_to_json(plan),
        folders=tuple(folder or app.settings.project for folder in folders),
        config=config,
        task_config=parse_new_config(app, config),
        by=params.get_actor(),
        apply=params.take_flag("apply"),
        include_dirty=params.take_flag("include_dirty"),
        name=params.take_text("task_id", ""),
    )
    keys = take_texts(params, "keys", "names of variables")
    params.refuse_unknown()
    _require_plan_key(keys, request)
    with add_configuration_hint(lambda: source):
        return await _start_requested(app, request)


async def start_retry(app: App, params: Params) -> Any:
    """Start a run of the steps that did not complete in an earlier run, with its configuration."""
    earlier = app.records.get_task(params.take_task()).id
    limit = params.take_raw("max_concurrent")
    keys = take_texts(params, "keys", "names of variables")
    actor = params.get_actor()
    params.take_text("cwd", "")
    params.refuse_unknown()
    plan = await app.plans.make_retry_plan(earlier, load_stored_plan)
    section = dict(app.folders.get_file(earlier).read_document()["config"])  # type: ignore[call-overload]
    most, wait = section.pop("maxConcurrentAgents", None), section.pop("timeoutSeconds", None)
    config = NewConfig(
        document=section, max_concurrent=most if limit is None else limit, timeout_seconds=wait
    )
    document = plan_to_json(plan)
    request = RunRequest(
        plan=plan,
        text=json.dumps(document, indent=2),  # JSON is YAML, too
        document=document,
        folders=(app.settings.project,),
        config=config,
        task_config=parse_new_config(app, config),
        by=actor,
        retry_of=earlier,
    )
    _require_plan_key(keys, request)
    return await _start_requested(app, request)


async def _start_requested(app: App, request: RunRequest) -> dict[str, Any]:
    task = await app.plans.start(request)
    started = {"task_id": task.id, "run_id": task.run, "status": "running"}
    started |= {"retry_of": request.retry_of} if request.retry_of else {}
    return started | collect_warnings(app, task.id, *list_unenforced(request.plan))


async def start_team_run(app: App, params: Params) -> Any:
    if verify := take_texts(params, "verify", "a command and its arguments"):
        return await start_contest(app, params, verify)
    prompt = params.take_text("prompt")
    folder = _take_folder(params, "cwd")
    source = find_configuration_source(app, params)
    is_given = bool(params.peek("config_text"))
    document = load_configuration(app, params) or DEFAULT_CONFIG
    agents = take_texts(params, "agents", "names of coding agents")
    if agents:
        document = name_members(document, agents)
    most = params.take_raw("max_concurrent")
    keys = take_texts(params, "keys", "names of variables")
    actor = params.get_actor()
    params.refuse_unknown()
    config = NewConfig(document=document, max_concurrent=most)
    task_config = parse_new_config(app, config)
    _require_default_key(keys, task_config)
    choice = None
    if not agents and prompt.strip():
        choice = await choose_team(
            document,
            task_config,
            app.spawning.agents.list_agents(task_config),
            app.gateway.find_local_servers,
        )
        config = NewConfig(document=choice.document, max_concurrent=most)
        task_config = parse_new_config(app, config)
    request = TeamRunRequest(
        prompt=prompt,
        config=config,
        task_config=task_config,
        base=folder or app.settings.project,
        by=actor,
    )
    with add_configuration_hint(lambda: source):
        try:
            task = await app.team_runs.start(request)
        except BadInput as error:
            if choice is None or not choice.remark:
                raise
            raise error.with_more(choice.remark) from None
    started: dict[str, Any] = {"task_id": task.id, "run_id": task.run, "status": "running"}
    # A team that the caller itself names needs no explanation.
    if choice is not None and not (is_given and choice.kind == "configuration"):
        started["team_choice"] = choice.to_json()
    return started | collect_warnings(app, task.id)


async def wait_run(app: App, params: Params) -> Any:
    """Return the outcome of a run; the run continues if the caller disconnects."""
    task = params.take_task()
    params.refuse_unknown()
    return await _wait_run_end(app, task)


async def stream_run(begin: Verb, app: App, params: Params) -> AsyncGenerator[Any, None]:
    """Yield the started run, then its outcome; cancel the run if the caller disconnects.

    If the steward ends instead, the run continues under the next one.
    """
    started = await begin(app, params)
    task = TaskId(started["task_id"])
    try:
        yield started
        end = await _wait_run_end(app, task)
    except (asyncio.CancelledError, GeneratorExit) as gone:
        # LEFT: the steward is ending, or the caller left the run to continue on purpose.
        if LEFT not in gone.args:
            await asyncio.shield(_cancel_run(app, task))
        raise
    yield end


async def get_run(app: App, params: Params) -> Any:
    """Return the document that started a run, for a run that is under way."""
    task = params.take_task()
    params.refuse_unknown()
    task_record = app.records.get_task(task)
    return {"task_id": task_record.id, "run_id": task_record.run, "status": "running"}


async def _cancel_run(app: App, task: TaskId) -> None:
    app.plans.stop(task, by="parent", reason=GONE)
    await app.tasks.cancel(task, by="parent", reason=GONE)


async def _wait_run_end(app: App, task: TaskId) -> Any:
    if app.team_runs.find_root_team(task) is None:
        return _report_end(app, await app.plans.wait(task))
    end = await app.team_runs.wait(task)
    document = _report_end(app, end)
    root = next(result for result in document["results"] if result["subagent_id"] == ROOT)
    delegated = [result for _, result in end.parts if result and result.subagent_id != ROOT]
    batch = batch_to_json(delegated)
    document |= {"answer": root["answer"], "root": root}
    document |= {key: batch[key] for key in ("results", "summary")}
    # Reading the parts' folders would block the event loop.
    document["parts"] = await asyncio.to_thread(describe_parts, app, end.parts)
    lead = app.records.get_subagent(task, ROOT)
    if root["success"] and not can_judge(lead):
        composed = await asyncio.to_thread(compose_answer, app, end.parts)
        document |= {"answer": composed, "answer_by": BY_RULE} if composed else {}
    return document


async def apply_branch(app: App, params: Params) -> Any:
    """Fast-forward the checked-out branch to the branch of an ended plan."""
    task = params.take_task()
    params.get_actor()
    params.refuse_unknown()
    return await app.plans.apply_branch(task)


async def join_output(app: App, params: Params) -> Any:
    task = params.take_task()
    name = params.take_text("subagent")
    params.refuse_unknown()
    subagent = await app.plans.join_output(task, name)
    row = make_subagent_row(app, subagent)
    result = app.records.get_result(subagent)
    joined = dict(result.integration or {}) if result else {}
    return row | {"integration": joined, "success": row["status"] == "completed"}


RUN_VERBS: dict[str, Verb] = {
    "run.start": start_plan_run,
    "run.begin": start_team_run,
    "run.retry": start_retry,
    "run.wait": wait_run,
    "run.apply": apply_branch,
    "subagent.integrate": join_output,
}
RUN_STREAMS: dict[str, Stream] = {
    "run.attend_plan": partial(stream_run, start_plan_run),
    "run.attend": partial(stream_run, start_team_run),
    "run.attend_retry": partial(stream_run, start_retry),
    # For a client that lost its steward
    "run.attend_again": partial(stream_run, get_run),
}


def _report_end(app: App, end: JoinedTask) -> dict[str, Any]:
    # The files on disk must have the final figures before the caller reads them.
    app.projector.flush()
    document = joined_to_json(end.task, end.outcome, end.parts, end.details)
    app.folders.write_reports(end.task.id, document, joined_to_markdown(document))
    batch = batch_to_json([result for _, result in end.parts if result is not None])
    details: dict[str, Any] = {key: value for key, value in end.details.items() if key != "outcome"}
    return {
        "task_id": end.task.id,
        "run_id": end.task.run,
        "status": STATUS_OF_OUTCOME.get(end.outcome, end.outcome),
        "outcome": end.outcome,
        "branch": None,
        **details,
        "metrics": totals_to_json(app.records.sum_totals(end.task.id)),
        "results": batch["results"],
        "summary": batch["summary"] | {"not_started": len(list_not_started(details))},
    }


def _require_plan_key(keys: list[str], request: RunRequest) -> None:
    """Check the keys for a plan; one whose steps are all commands needs no model."""
    if not all(step.command for step in request.plan.steps):
        _require_default_key(keys, request.task_config)


def _require_default_key(keys: list[str], task_config: TaskConfig) -> None:
    """Check that the steward has a key if the caller has one and the configuration names no model.

    Args:
        keys: the variables with keys that are set where the caller runs.

    Raises:
        Refused: the caller has a key, but the steward has none and would use the local model.
    """
    by_default = not task_config.staff.everyone
    if keys and by_default and task_config.fallback[0].type == LOCAL:
        raise Refused(
            f"{keys[0][:80]} is set here, but not in the environment of the steward, which would "
            "use the local model",
            code="no_key",
            hint="run 'retinue steward stop': the next command starts a steward with the key; to "
            "use the local model, add --config @demo",
        )


def _take_folder(params: Params, name: str) -> Path | None:
    text = params.take_text(name, "")
    return parse_folder(text, name) if text else None
