"""Tasks: created, looked at, joined, cancelled and closed."""

from __future__ import annotations

import click

from retinue.doors.cli import render, views
from retinue.doors.cli.options import (
    LIMIT,
    TASK,
    Verbs,
    counting,
    given,
    read_config,
    seconds,
    task_id,
    whole,
)
from retinue.doors.cli.session import Session
from retinue.doors.cli.timeline import Condensed, show_events


@click.group(cls=Verbs, example='retinue task create --title "Build the site"')
def task() -> None:
    """Create tasks, look at them, end them."""


@task.command(example='retinue task create --title "Build the site" --max-concurrent 4')
@click.option("--title", required=True, metavar="T", help="What it is called.")
@click.option("--description", default="", metavar="D", help="What it is about.")
@click.option("--config", metavar="FILE|@NAME", help="The configuration that the task will keep.")
@click.option(
    "--max-concurrent", callback=counting, metavar="N", help="Subagents at once; 3 without it."
)
@click.option(
    "--timeout-seconds",
    callback=seconds,
    metavar="S",
    help="How long wait-any waits; 3600 without it.",
)
@click.option("--id", "name", type=task_id, metavar="ID", help="Its id; else one is made.")
@click.pass_obj
def create(
    session: Session,
    title: str,
    description: str,
    config: str | None,
    max_concurrent: int | None,
    timeout_seconds: float | None,
    name: str | None,
) -> None:
    """Create a task."""
    limits = {"max_concurrent": max_concurrent, "timeout_seconds": timeout_seconds}
    params = given(description=description, task_id=name, **limits)
    if config is not None:
        params |= read_config(config)
    document = session.call("task.create", title=title, **params)
    render.warn(document)
    session.answer(document, lambda it: str(it["task_id"]))
    if not session.json:
        render.note(f"its folder is {document['path']}")


@task.command("list", example="retinue task list --limit 10")
@LIMIT
@click.pass_obj
def list_(session: Session, limit: int | None) -> None:
    """List tasks, the newest first."""
    session.answer(session.listed("task.list", **given(limit=limit)), views.tasks)


@task.command(example="retinue task show site-1a2b3c")
@TASK
@click.pass_obj
def show(session: Session, task: str) -> None:
    """Show a task and its subagents."""
    session.answer(session.call("task.show", task=task), views.task)


@task.command(example="retinue task events site-1a2b3c --since 12 --follow")
@TASK
@click.option("--since", callback=whole, metavar="SEQ", help="Only those after this one.")
@click.option("--type-prefix", default="", metavar="P", help="Only types that begin so.")
@click.option("--limit", callback=whole, metavar="N", help="The first N from there.")
@click.option("--follow", is_flag=True, help="Go on until the task is closed, or N are shown.")
@click.pass_obj
def events(
    session: Session,
    task: str,
    since: int | None,
    type_prefix: str,
    limit: int | None,
    follow: bool,
) -> None:
    """Show what was recorded, oldest first."""
    params = given(since=since, type_prefix=type_prefix, limit=limit, follow=follow)
    with session.client() as client:
        stream = client.stream("task.events", task=task, **params)
        view = Condensed(colour=render.in_colour())
        show_events(session, stream, view, at_once=follow)


@task.command(example="retinue task join site-1a2b3c --json")
@TASK
@click.pass_obj
def join(session: Session, task: str) -> None:
    """Put all results side by side, also in the task's shared/reports."""
    session.answer(session.call("task.join", task=task), views.joined)


@task.command(example='retinue task cancel site-1a2b3c --reason "not needed"')
@TASK
@click.option("--reason", default="", metavar="R", help="Why; it is recorded.")
@click.option("--kill", is_flag=True, help="Give no time to end in order.")
@click.pass_obj
def cancel(session: Session, task: str, reason: str, kill: bool) -> None:
    """Cancel every subagent that works or waits to."""
    params = given(reason=reason, kill=kill)
    document = session.call("task.cancel", task=task, by="user", **params)
    session.answer(document, views.cancelled)


@task.command(example="retinue task close site-1a2b3c")
@TASK
@click.pass_obj
def close(session: Session, task: str) -> None:
    """Close a task: its run has its outcome, and it takes no more work."""
    session.answer(session.call("task.close", task=task, by="user"), views.closed)
