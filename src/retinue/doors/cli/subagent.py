"""Subagents: awaited, looked at, cancelled, continued and closed."""

from __future__ import annotations

import click

from retinue.doors.cli import render, views
from retinue.doors.cli.options import (
    LIMIT,
    SUBAGENT,
    TASK,
    Lazy,
    given,
    seconds,
    seconds_or_zero,
)
from retinue.doors.cli.session import Session

LATER = {
    "spawn": ("spawn", "Give work to a new subagent."),
    "logs": ("logs", "Show what a subagent printed."),
}
WAITS = click.option(
    "--timeout-seconds",
    callback=seconds_or_zero,
    metavar="S",
    help="How long; without it the task's own. 0 asks without waiting.",
)


@click.group(cls=Lazy, later=LATER, example="retinue subagent list site-1a2b3c")
def subagent() -> None:
    """Spawn subagents, wait for them, read their results."""


@subagent.command("list", example="retinue subagent list site-1a2b3c --json")
@TASK
@LIMIT
@click.pass_obj
def list_(session: Session, task: str, limit: int | None) -> None:
    """List a task's subagents: every open one, and the newest."""
    rows = session.call("subagent.list", task=task, **given(limit=limit))
    session.answer(rows, views.subagents)


@subagent.command(example="retinue subagent show site-1a2b3c bio")
@TASK
@SUBAGENT
@click.pass_obj
def show(session: Session, task: str, subagent: str) -> None:
    """Show all that is known of a subagent."""
    session.answer(session.call("subagent.show", task=task, subagent=subagent), views.subagent)


@subagent.command(
    example="retinue subagent result site-1a2b3c bio",
    exits="0 it has a result, whatever its status\n3 it has none yet",
)
@TASK
@SUBAGENT
@click.pass_obj
def result(session: Session, task: str, subagent: str) -> None:
    """Show what a subagent came to: its answer first."""
    session.answer(session.call("subagent.result", task=task, subagent=subagent), views.result)


@subagent.command(
    "wait-any",
    example="retinue subagent wait-any site-1a2b3c --timeout-seconds 60",
    exits="0 the id and the status of one that settled, however it ended\n"
    "4 none settled in time; or nobody is at work and every end was told, which is said at once",
)
@TASK
@WAITS
@click.option("--consumer", metavar="NAME", help="Who waits; each is told of each end once.")
@click.option("--peek", is_flag=True, help="Look without taking.")
@click.pass_obj
def wait_any(
    session: Session, task: str, timeout_seconds: float | None, consumer: str | None, peek: bool
) -> None:
    """Wait until a subagent completes, fails, is cancelled or blocks."""
    params = given(timeout_seconds=timeout_seconds)
    if consumer is not None:
        params["consumer"] = consumer
    with session.client() as client:
        document = client.call("subagent.wait_any", task=task, peek=peek, **params)
        try:
            session.answer(document, lambda it: views.settled([it]))
            render.flush()
        except OSError:  # whoever was to read it is gone: it is told again
            client.forget()
            raise


@subagent.command(
    "wait-all",
    example="retinue subagent wait-all site-1a2b3c",
    exits="0 nobody is at work, however they ended\n4 somebody still was, when the time was up",
)
@TASK
@WAITS
@click.option("--consumer", metavar="NAME", help="As for wait-any; waiting for all takes nothing.")
@click.option("--peek", is_flag=True, help="As for wait-any; waiting for all takes nothing.")
@click.pass_obj
def wait_all(
    session: Session, task: str, timeout_seconds: float | None, consumer: str | None, peek: bool
) -> None:
    """Wait until no subagent works or waits to."""
    params = given(timeout_seconds=timeout_seconds)
    session.answer(session.call("subagent.wait_all", task=task, **params), views.settled)


@subagent.command(example='retinue subagent cancel site-1a2b3c docs --reason "not needed"')
@TASK
@SUBAGENT
@click.option("--reason", default="", metavar="R", help="Why; it is recorded.")
@click.option("--kill", is_flag=True, help="Give it no time to end in order.")
@click.pass_obj
def cancel(session: Session, task: str, subagent: str, reason: str, kill: bool) -> None:
    """Cancel a subagent, and show what it had earned."""
    params = given(reason=reason, kill=kill)
    document = session.call("subagent.cancel", task=task, subagent=subagent, by="user", **params)
    session.answer(document, lambda it: views.result(it["result"]))


@subagent.command(
    "continue",
    example='retinue subagent continue site-1a2b3c bio "Use the 2024 figures." --wait',
    exits="0 it goes on; with --wait, it succeeded\n1 with --wait: it did not",
)
@TASK
@SUBAGENT
@click.argument("message", metavar="MESSAGE")
@click.option("--timeout-seconds", callback=seconds, metavar="S", help="How long it may take.")
@click.option("--wait", is_flag=True, help="Wait for its result; Ctrl-C cancels it.")
@click.pass_obj
def continue_(
    session: Session,
    task: str,
    subagent: str,
    message: str,
    timeout_seconds: float | None,
    wait: bool,
) -> int:
    """Answer a blocked subagent, or give a closed one more to do.

    A blocked one goes on with the answer. A closed one has a successor: a new subagent with the
    same work and the message, in the same workspace.
    """
    from retinue.doors.cli.spawn import NEXT, continue_and_wait

    request = given(timeout_seconds=timeout_seconds) | {
        "task": task,
        "subagent": subagent,
        "message": message,
        "by": "user",
    }
    if wait:
        return continue_and_wait(session, request)
    document = session.call("subagent.continue", **request)
    render.warn(document)
    session.answer(document, lambda it: f"{views.spawned(it)}\n{NEXT} {task}")
    return 0


@subagent.command(example='retinue subagent send site-1a2b3c bio "Keep it under a page."')
@TASK
@SUBAGENT
@click.argument("message", metavar="MESSAGE")
@click.pass_obj
def send(session: Session, task: str, subagent: str, message: str) -> None:
    """Tell a running team something; it hears it at its next turn."""
    document = session.call(
        "subagent.send", task=task, subagent=subagent, message=message, by="user"
    )
    session.answer(document, lambda it: views.subagents([it]))


@subagent.command(example="retinue subagent integrate site-1a2b3c bio")
@TASK
@SUBAGENT
@click.pass_obj
def integrate(session: Session, task: str, subagent: str) -> int:
    """Join output that waits for it: merge or copy it."""
    document = session.call("subagent.integrate", task=task, subagent=subagent, by="user")
    session.answer(document, views.integrated)
    return 0 if document["success"] else 1


@subagent.command(example="retinue subagent close site-1a2b3c bio")
@TASK
@SUBAGENT
@click.pass_obj
def close(session: Session, task: str, subagent: str) -> None:
    """Close a subagent that has come to its end."""
    document = session.call("subagent.close", task=task, subagent=subagent, by="user")
    session.answer(document, lambda it: views.subagents([it]))
