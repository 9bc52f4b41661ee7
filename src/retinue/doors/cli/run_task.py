"""A run from the shell: a prompt for a team, or a plan."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from typing import Any

import click

from retinue.domain.advice import advised
from retinue.domain.defaults import USUAL
from retinue.domain.errors import RetinueError
from retinue.doors.cli import render, views
from retinue.doors.cli.live import Live
from retinue.doors.cli.options import Verb, counting, given, read_config, read_text
from retinue.doors.cli.run import INTERRUPTED
from retinue.doors.cli.session import Session, here
from retinue.doors.cli.spawn import Interruption

OF_PLANS = ("apply", "include_dirty")


@click.command(
    cls=Verb,
    example='retinue run --config @demo "Describe this folder in three files"\n'
    "retinue run --plan plan.yaml --apply --json",
    exits="0 it succeeded, and was applied where that was asked for; with --background, it began\n"
    "1 it failed, or its team asks something; a plan waits until its steps are answered\n"
    "130 interrupted: its subagents were cancelled",
)
@click.argument("prompt", required=False, default="", metavar="[PROMPT]")
@click.option("--plan", "plan", metavar="FILE", help="The plan to carry out.")
@click.option("--config", metavar="FILE|@NAME", help="The configuration of its task.")
@click.option("--max-concurrent", callback=counting, metavar="N", help="How many work at once.")
@click.option("--apply", is_flag=True, help="Of a plan: fast-forward the checked-out branch.")
@click.option("--include-dirty", is_flag=True, help="Of a plan: start from uncommitted work, too.")
@click.option("--wait/--background", default=True, help="Wait for its end, or leave it running.")
@click.pass_context
def run(ctx: click.Context, /, prompt: str, plan: str | None, wait: bool, **options: Any) -> int:
    """Give a PROMPT to a team that may delegate, or carry out a plan and join its steps.

    It is cancelled when this command is interrupted or killed; with --background it goes on.
    """
    if bool(prompt.strip()) == bool(plan):
        raise click.UsageError("Give a PROMPT or a plan, one of the two", ctx)
    lost = [name for name in OF_PLANS if options[name] and not plan]
    if lost:
        raise click.UsageError(f"--{lost[0].replace('_', '-')} is for a plan: give --plan", ctx)
    session: Session = ctx.obj
    request = _request(prompt, plan, options)
    if wait:
        return _until_its_end(session, request)
    started = session.call("run.start" if plan else "run.begin", **request)
    render.warn(started)
    session.answer(started, _begun)
    return 0


def _request(prompt: str, plan: str | None, options: dict[str, Any]) -> dict[str, Any]:
    keys = [name for name in USUAL if os.environ.get(name, "").strip()]
    request = {"cwd": here(), "by": "user"}
    request |= given(max_concurrent=options["max_concurrent"], keys=keys)
    if options["config"]:
        request |= read_config(options["config"])
    if not plan:
        return request | {"prompt": prompt}
    request |= given(**{name: options[name] for name in OF_PLANS})
    return request | {
        "plan_text": read_text(plan, "plan"),
        "plan_name": plan,
        "plan_folder": os.path.dirname(os.path.abspath(plan)),
    }


def _until_its_end(session: Session, request: dict[str, Any]) -> int:
    """The run's end is shown. It is cancelled by Ctrl-C, and by the end of this very process:
    from its beginning on, the steward knows by the connection that somebody is there.
    """

    def stop(kill: bool) -> None:
        with suppress(RetinueError, OSError), session.client() as client:
            reason = "interrupted at the shell"
            client.call("task.cancel", task=task, by="user", reason=reason, kill=kill)

    planned = "plan_text" in request
    verb = "run.attend_plan" if planned else "run.attend"
    with session.client(verb) as client:
        course = client.stream(verb, **request)
        started = next(course)
        render.warn(started)
        task = started["task_id"]
        with Interruption(stop) as interruption, Live(session, task, gates=planned):
            document = next(course)
    session.answer(document, _view)
    if interruption.count:
        return INTERRUPTED
    good = document["status"] == "completed" and document.get("applied") is not False
    return 0 if good else 1


def _begun(started: dict[str, Any]) -> str:
    task = started["task_id"]
    return f"{task}  running\nlook at it with: retinue task show {task}"


def _view(document: dict[str, Any]) -> str:
    lines, root = [], document.get("root")
    for result in document["results"]:
        joined = result.get("integration") or {}
        lines.append(
            f"{result['subagent_id']}  result: {render.status(result['status'])}  "
            f"{views.joining(joined)}".rstrip()
        )
        if result.get("error"):
            lines.append(f"  {render.one_line(advised(result['error']))}")
        warning = result.get("warning")
        if warning and warning != (root or {}).get("warning"):  # which is told below
            lines.append(f"  warning: {render.one_line(warning)}")
        if not result["success"] and not root:
            if joined.get("patch"):
                lines.append(f"  patch: {render.one_line(joined['patch'])}")
            lines += [f"  {line}" for line in views.left(result)]
    lines += views.not_started(document)
    if root is not None:
        lines += _root_lines(root, document["task_id"])
    spent = views.spent(document["metrics"]["totals"])
    all_of_it = f"  ({spent})" if spent else ""
    lines.append(f"run of {document['task_id']}: {document['outcome']}{all_of_it}")
    if document.get("branch"):
        where = _elsewhere(document.get("repository") or ".")
        lines.append(f"look at it with: git{where} log --stat {document['branch']}")
    if document.get("applied"):
        lines.append("applied to the branch that is checked out")
    elif document.get("apply_error"):
        lines.append(render.one_line(document["apply_error"]))
    return "\n".join(lines)


def _elsewhere(repository: str) -> str:
    """What git has to be told where one is in no folder of the repository."""
    place = os.path.relpath(repository)
    inside = all(part == ".." for part in place.split(os.sep)) or place == "."
    return "" if inside else f" -C {shlex.quote(place)}"


def _root_lines(root: dict[str, Any], task: str) -> list[str]:
    """The answer of the team that the run was started with, last, because it is what one wants."""
    lines = []
    for name in ("warning", "error"):
        if root.get(name):
            lines.append(f"{name}: {render.one_line(root[name])}")
    lines += [f"question: {render.one_line(each)}" for each in root.get("questions") or ()]
    if root["status"] == "blocked":
        lines.append(f"to answer: 'retinue gate list {task}', then 'retinue gate approve'")
    lines += ["", render.plain(root["answer"] or "no answer"), ""]
    return [*lines, f"files: {render.one_line(root['workspace'])}"]
