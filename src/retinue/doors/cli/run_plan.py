"""Carrying out a plan from the shell."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any

import click

from retinue.domain.errors import RetinueError
from retinue.doors.cli import render
from retinue.doors.cli.options import Verb, given, read_config, read_text, whole
from retinue.doors.cli.run import INTERRUPTED
from retinue.doors.cli.session import Session, here
from retinue.doors.cli.spawn import Interruption


@click.command(
    cls=Verb,
    example="retinue run --plan plan.yaml\nretinue run --plan plan.yaml --apply --json",
)
@click.option("--plan", "plan", required=True, metavar="FILE", help="The plan to carry out.")
@click.option("--config", metavar="FILE|@NAME", help="The configuration of its task.")
@click.option("--max-concurrent", type=whole, metavar="N", help="How many steps work at once.")
@click.option("--apply", is_flag=True, help="Fast-forward the branch that is checked out.")
@click.option("--include-dirty", is_flag=True, help="Start from what is not committed yet, too.")
@click.option("--wait/--background", default=True, help="Wait for its end, or leave it running.")
@click.pass_obj
def run(session: Session, /, plan: str, wait: bool, **options: Any) -> int:
    """Carry out a plan: its steps become subagents, their work is joined in order."""
    text = read_text(plan, "plan")
    request = given((name, options[name]) for name in ("apply", "include_dirty")) | {
        "plan_text": text,
        "plan_name": plan,
        "plan_folder": os.path.dirname(os.path.abspath(plan)),
        "cwd": here(),
        "by": "user",
    }
    if options["max_concurrent"] is not None:
        request["max_concurrent"] = options["max_concurrent"]
    if options["config"]:
        request |= read_config(options["config"])
    started = session.call("run.start", **request)
    if not wait:
        session.answer(started, lambda it: f"{it['task_id']}  running")
        return 0
    return _until_its_end(session, started["task_id"])


def _until_its_end(session: Session, task: str) -> int:
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write(f"{task}: running; Ctrl-C cancels, twice kills\n")

    def stop(kill: bool) -> None:
        with suppress(RetinueError, OSError), session.client() as client:
            reason = "interrupted at the shell"
            client.call("task.cancel", task=task, by="user", reason=reason, kill=kill)

    with session.client() as client, Interruption(stop) as interruption:
        document = client.call("run.wait", task=task)
    session.answer(document, _view)
    if interruption.count:
        return INTERRUPTED
    good = document["status"] == "completed" and document.get("applied") is not False
    return 0 if good else 1


def _view(document: dict[str, Any]) -> str:
    lines = []
    for result in document["results"]:
        joined = result.get("integration") or {}
        how = joined.get("reason") or ""
        where = joined.get("commit", "")[:12] or joined.get("destination", "")
        lines.append(
            f"{result['subagent_id']}  {render.status(result['status'])}  "
            f"{render.one_line(f'{how} {where}')}".rstrip()
        )
        if result.get("error"):
            lines.append(f"  {render.one_line(result['error'])}")
        for name in ("branch", "patch", "workspace"):
            if joined.get(name) and how not in ("merged", "copied"):
                lines.append(f"  {name}: {render.one_line(joined[name])}")
    for name, why in (document.get("not_started") or {}).items():
        lines.append(f"{name}  not started: {render.one_line(why)}")
    lines.append(f"run of {document['task_id']}: {document['status']}")
    if document.get("branch"):
        lines.append(f"look at it with: git log --stat {document['branch']}")
    if document.get("applied"):
        lines.append("applied to the branch that is checked out")
    elif document.get("apply_error"):
        lines.append(render.one_line(document["apply_error"]))
    return "\n".join(lines)
