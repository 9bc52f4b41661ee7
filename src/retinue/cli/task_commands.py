"""The `retinue task` and `retinue gate` commands."""

from __future__ import annotations

from typing import Any

import click

from retinue.cli import render, tables
from retinue.cli.options import (
    LIMIT,
    TASK,
    CliGroup,
    counting,
    parse_gate_id,
    parse_task,
    parse_task_id,
    read_config,
    seconds,
    select_given,
    whole,
)
from retinue.cli.steward_session import CliSession
from retinue.cli.timeline_commands import EventFormatter, show_events


@click.group(cls=CliGroup, example='retinue task create --title "Build the site"')
def task() -> None:
    """Create, inspect, cancel and close tasks."""


@task.command(example='retinue task create --title "Build the site" --max-concurrent 4')
@click.option("--title", required=True, metavar="T", help="Title of the task.")
@click.option("--description", default="", metavar="D", help="What the task is about.")
@click.option("--config", metavar="FILE|@NAME", help="Configuration, copied into the task.")
@click.option(
    "--max-concurrent",
    callback=counting,
    metavar="N",
    help="Maximum number of subagents that run at once. Default: 3.",
)
@click.option(
    "--timeout-seconds",
    callback=seconds,
    metavar="S",
    help="Default timeout of wait-any. Default: 3600.",
)
@click.option("--id", "name", type=parse_task_id, metavar="ID", help="Its id. Default: generated.")
@click.pass_obj
def create(
    session: CliSession,
    title: str,
    description: str,
    config: str | None,
    max_concurrent: int | None,
    timeout_seconds: float | None,
    name: str | None,
) -> None:
    """Create a task."""
    limits = {"max_concurrent": max_concurrent, "timeout_seconds": timeout_seconds}
    params = select_given(description=description, task_id=name, **limits)
    if config is not None:
        params |= read_config(config)
    document = session.call("task.create", title=title, **params)
    render.warn(document)
    session.answer(document, lambda it: str(it["task_id"]))
    if not session.json:
        # On standard error: scripts read the id from standard output.
        render.note(f"its folder is {document['path']}")


@task.command("list", example="retinue task list --limit 10")
@LIMIT
@click.pass_obj
def list_(session: CliSession, limit: int | None) -> None:
    """List tasks, the newest first."""
    session.answer(session.call_list("task.list", **select_given(limit=limit)), tables.format_tasks)


@task.command(example="retinue task show site-1a2b3c")
@TASK
@click.option("--all", "everyone", is_flag=True, help="Show every subagent.")
@click.pass_obj
def show(session: CliSession, task: str, everyone: bool) -> None:
    """Show a task and its subagents: every open one, and the newest 50 closed ones."""
    tables.answer_task(session, session.call("task.show", task=task, **select_given(all=everyone)))


@task.command(example="retinue task events site-1a2b3c --since 12 --follow")
@TASK
@click.option("--since", callback=whole, metavar="SEQ", help="Only events after this number.")
@click.option("--type-prefix", default="", metavar="P", help="Only event types with this prefix.")
@click.option("--limit", callback=whole, metavar="N", help="At most N events.")
@click.option("--follow", is_flag=True, help="Wait for new events until the task is closed.")
@click.pass_obj
def events(
    session: CliSession,
    task: str,
    since: int | None,
    type_prefix: str,
    limit: int | None,
    follow: bool,
) -> None:
    """Show the events of a task, oldest first."""
    params = select_given(since=since, type_prefix=type_prefix, limit=limit, follow=follow)
    with session.open_client() as client:
        stream = client.stream("task.events", task=task, **params)
        view = EventFormatter(colour=render.has_colour())
        show_events(session, stream, view, at_once=follow)


@task.command(example="retinue task join site-1a2b3c --json")
@TASK
@click.pass_obj
def join(session: CliSession, task: str) -> None:
    """Print all results, and write them to shared/reports in the task's folder."""
    session.answer(session.call("task.join", task=task), tables.format_joined)


@task.command(example='retinue task cancel site-1a2b3c --reason "not needed"')
@TASK
@click.option("--reason", default="", metavar="R", help="The reason, for the record.")
@click.option("--kill", is_flag=True, help="Kill them at once, without a grace period.")
@click.pass_obj
def cancel(session: CliSession, task: str, reason: str, kill: bool) -> None:
    """Cancel every running or queued subagent."""
    params = select_given(reason=reason, kill=kill)
    document = session.call("task.cancel", task=task, by="user", **params)
    session.answer(document, tables.format_cancelled)


@task.command(
    example="retinue task apply site-1a2b3c",
    exits="0 applied\n1 nothing was changed: no branch, uncommitted changes, or no fast-forward",
)
@TASK
@click.pass_obj
def apply(session: CliSession, task: str) -> None:
    """Fast-forward the checked-out branch and its files to the branch of an ended plan."""
    document = session.call("run.apply", task=task, by="user")
    session.answer(document, lambda it: f"applied {it['branch']} at {it['head'][:12]}")


@task.command(
    example="retinue task delete site-1a2b3c",
    exits="0 deleted\n1 it is open, or has files that were not merged and --force is not set",
)
@TASK
@click.option("--force", is_flag=True, help="Also delete files that were not merged anywhere.")
@click.pass_obj
def delete(session: CliSession, task: str, force: bool) -> None:
    """Delete a closed task: its folder, events, results and costs.

    The root keeps one record of the deletion: id, title, times, and sums of tokens and cost.
    Branches in your repository stay.
    """
    document = session.call("task.delete", task=task, by="user", **select_given(force=force))
    size = render.format_bytes(document["bytes"])
    session.answer(document, lambda it: f"deleted {it['task_id']}, {size} freed")


@task.command(example="retinue task close site-1a2b3c")
@TASK
@click.pass_obj
def close(session: CliSession, task: str) -> None:
    """Close a task: set the outcome of its run and refuse further work."""
    document = session.call("task.close", task=task, by="user")
    # The text for people contains the warnings already.
    if session.json:
        render.warn(document)
    session.answer(document, tables.format_closed)


GATE = click.argument("gate", metavar="GATE", type=parse_gate_id)


@click.group(cls=CliGroup, example="retinue gate list")
def gate() -> None:
    """Answer the questions of blocked subagents, and approve output before it is joined."""


@gate.command("list", example="retinue gate list\nretinue gate list site-1a2b3c")
@click.argument("task", metavar="[TASK]", type=parse_task, required=False)
@click.pass_obj
def list_gates(session: CliSession, task: str | None) -> None:
    """List the gates of a task; without TASK, the open gates of all tasks."""
    found = session.call("gate.list", task=task) if task else session.call_list("gate.list")
    session.answer(found, _format_gates)


@gate.command(example='retinue gate approve site-1a2b3c bio-1 --answer "Yes, publish."')
@TASK
@GATE
@click.option("--answer", metavar="TEXT", help="The answer. Default: approved.")
@click.pass_obj
def approve(session: CliSession, task: str, gate: str, answer: str | None) -> None:
    """Answer a blocked subagent, which then continues; in a review, let its output be joined."""
    params = {} if answer is None else {"answer": answer}
    document = session.call("gate.approve", task=task, gate=gate, by="user", **params)
    session.answer(document, tables.format_spawned)


@gate.command(example='retinue gate reject site-1a2b3c bio-1 --reason "not now"')
@TASK
@GATE
@click.option("--reason", default="", metavar="R", help="The reason, for the record.")
@click.pass_obj
def reject(session: CliSession, task: str, gate: str, reason: str) -> None:
    """Fail a blocked subagent without an answer; in a review, do not join its output."""
    params = select_given(reason=reason)
    document = session.call("gate.reject", task=task, gate=gate, by="user", **params)
    session.answer(document, lambda it: tables.format_subagents([it]))


def _format_gates(gates: list[dict[str, Any]]) -> str:
    if not gates:
        return "no gates: no subagent has an open question"
    columns = ("task_id", "gate_id", "state", "agentInstance")
    return render.format_table(
        ("TASK", "GATE", "STATE", "SUBAGENT", "QUESTIONS"),
        [(*(each[name] for name in columns), "; ".join(each["questions"])) for each in gates],
    )
