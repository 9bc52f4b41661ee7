"""The `retinue subagent` commands except spawn and logs."""

from __future__ import annotations

import click

from retinue.cli import render, tables
from retinue.cli.options import (
    SUBAGENT,
    TASK,
    LazyGroup,
    counting,
    seconds,
    seconds_or_zero,
    select_given,
)
from retinue.cli.steward_session import CliSession

LATER = {
    "spawn": ("spawn_command", "Give work to a new subagent."),
    "logs": ("logs", "Show the output of a subagent."),
}
WAITS = click.option(
    "--timeout-seconds",
    callback=seconds_or_zero,
    metavar="S",
    help="How long to wait. Default: the task's setting. 0 does not wait.",
)


@click.group(cls=LazyGroup, later=LATER, example="retinue subagent list site-1a2b3c")
def subagent() -> None:
    """Spawn subagents, wait for them, read their results."""


@subagent.command("list", example="retinue subagent list site-1a2b3c --json")
@TASK
@click.option(
    "--limit", metavar="N", callback=counting, help="Show the newest N closed ones. Default: 50."
)
@click.option("--all", "everyone", is_flag=True, help="Show every subagent.")
@click.option("--page", is_flag=True, help="With --json: print an object with 'total' and 'shown'.")
@click.pass_obj
def list_(session: CliSession, task: str, limit: int | None, everyone: bool, page: bool) -> None:
    """List a task's subagents: every open one, and the newest closed ones.

    If some are left out, the list says so; with --json, a line on standard error does.
    """
    params = select_given(limit=limit, all=everyone)
    found = session.call("subagent.list", task=task, page=True, **params)
    tables.answer_list(session, found, page=page)


@subagent.command(example="retinue subagent show site-1a2b3c bio")
@TASK
@SUBAGENT
@click.pass_obj
def show(session: CliSession, task: str, subagent: str) -> None:
    """Show the state, limits, attempts and result of a subagent."""
    session.answer(
        session.call("subagent.show", task=task, subagent=subagent), tables.format_subagent
    )


@subagent.command(
    example="retinue subagent result site-1a2b3c bio",
    exits="0 the subagent has a result, whatever its status\n3 no result yet",
)
@TASK
@SUBAGENT
@click.pass_obj
def result(session: CliSession, task: str, subagent: str) -> None:
    """Show the result of a subagent: its answer first."""
    session.answer(
        session.call("subagent.result", task=task, subagent=subagent), tables.format_result
    )


@subagent.command(
    "wait-any",
    example="retinue subagent wait-any site-1a2b3c --timeout-seconds 60",
    exits="0 a subagent settled; its id and status are printed, whatever the status\n"
    "4 the wait timed out; or, at once, no subagent is running and all results were delivered",
)
@TASK
@WAITS
@click.option(
    "--consumer", metavar="NAME", help="Name of the waiter; each name gets each result once."
)
@click.option("--peek", is_flag=True, help="Do not mark the result as delivered.")
@click.pass_obj
def wait_any(
    session: CliSession, task: str, timeout_seconds: float | None, consumer: str | None, peek: bool
) -> None:
    """Wait until a subagent completes, fails, is cancelled or blocks.

    A subagent whose output you have to integrate is returned twice: as waiting_for_merge when
    its work is done, and again when it ends.
    """
    params = select_given(timeout_seconds=timeout_seconds)
    if consumer is not None:
        params["consumer"] = consumer
    with session.open_client() as client:
        document = client.call("subagent.wait_any", task=task, peek=peek, **params)
        try:
            session.answer(document, lambda it: tables.format_settled([it]))
            render.flush()
        except OSError:
            # The output could not be written: return the result to the queue for the next call.
            client.forget()
            raise


@subagent.command(
    "wait-all",
    example="retinue subagent wait-all site-1a2b3c",
    exits="0 all subagents settled, whatever their status\n"
    "4 the wait timed out while a subagent was running",
)
@TASK
@WAITS
@click.option(
    "--consumer", metavar="NAME", help="Accepted as in wait-any; wait-all delivers no results."
)
@click.option("--peek", is_flag=True, help="Accepted as in wait-any; wait-all delivers no results.")
@click.pass_obj
def wait_all(
    session: CliSession, task: str, timeout_seconds: float | None, consumer: str | None, peek: bool
) -> None:
    """Wait until no subagent is running or queued."""
    params = select_given(timeout_seconds=timeout_seconds)
    session.answer(session.call("subagent.wait_all", task=task, **params), tables.format_settled)


@subagent.command(example='retinue subagent cancel site-1a2b3c docs --reason "not needed"')
@TASK
@SUBAGENT
@click.option("--reason", default="", metavar="R", help="The reason, for the record.")
@click.option("--kill", is_flag=True, help="Kill it at once, without a grace period.")
@click.pass_obj
def cancel(session: CliSession, task: str, subagent: str, reason: str, kill: bool) -> None:
    """Cancel a subagent, and show the result recovered from it."""
    params = select_given(reason=reason, kill=kill)
    document = session.call("subagent.cancel", task=task, subagent=subagent, by="user", **params)
    session.answer(document, lambda it: tables.format_result(it["result"]))


@subagent.command(
    "continue",
    example='retinue subagent continue site-1a2b3c bio "Use the 2024 figures." --wait',
    exits="0 the subagent continues; with --wait, it succeeded\n1 with --wait: it did not succeed",
)
@TASK
@SUBAGENT
@click.argument("message", metavar="MESSAGE")
@click.option("--timeout-seconds", callback=seconds, metavar="S", help="Time limit for it.")
@click.option("--wait", is_flag=True, help="Wait for its result; Ctrl-C cancels it.")
@click.pass_obj
def continue_(
    session: CliSession,
    task: str,
    subagent: str,
    message: str,
    timeout_seconds: float | None,
    wait: bool,
) -> int:
    """Answer a blocked subagent, or give a closed one more to do.

    A blocked subagent continues with the message as its answer. A closed one gets a successor:
    a new subagent with the same brief and the message, in the same workspace. If it was
    continued before, its newest successor is continued; any id in the chain names it.
    """
    from retinue.cli.spawn_command import NEXT, continue_and_wait

    request = select_given(timeout_seconds=timeout_seconds) | {
        "task": task,
        "subagent": subagent,
        "message": message,
        "by": "user",
    }
    if wait:
        return continue_and_wait(session, request)
    document = session.call("subagent.continue", **request)
    render.warn(document)
    session.answer(document, lambda it: f"{tables.format_spawned(it)}\n{NEXT} {task}")
    return 0


@subagent.command(example='retinue subagent send site-1a2b3c bio "Keep it under a page."')
@TASK
@SUBAGENT
@click.argument("message", metavar="MESSAGE")
@click.option("--now", is_flag=True, help="Interrupt the turn of a coding agent first.")
@click.pass_obj
def send(session: CliSession, task: str, subagent: str, message: str, now: bool) -> None:
    """Send a message to a running team, which reads it at its next turn.

    Some coding agents read it within their turn.
    """
    given = select_given(now=now)
    document = session.call(
        "subagent.send", task=task, subagent=subagent, message=message, by="user", **given
    )
    told = f"message sent to {subagent}"
    session.answer(document, lambda it: f"{told}\n{tables.format_subagents([it])}")


@subagent.command(example="retinue subagent integrate site-1a2b3c bio")
@TASK
@SUBAGENT
@click.pass_obj
def integrate(session: CliSession, task: str, subagent: str) -> int:
    """Merge or copy output that is waiting for it."""
    document = session.call("subagent.integrate", task=task, subagent=subagent, by="user")
    session.answer(document, tables.format_integrated)
    return 0 if document["success"] else 1


@subagent.command(example="retinue subagent close site-1a2b3c bio")
@TASK
@SUBAGENT
@click.pass_obj
def close(session: CliSession, task: str, subagent: str) -> None:
    """Close a subagent that has completed or failed."""
    document = session.call("subagent.close", task=task, subagent=subagent, by="user")
    session.answer(document, lambda it: tables.format_subagents([it]))
