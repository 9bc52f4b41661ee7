"""The commands by name, and the parser that finds what was asked of them."""

from __future__ import annotations

import os
from typing import Any

import click

from retinue.domain.errors import BadInput
from retinue.doors.cli import render
from retinue.doors.cli.options import Lazy
from retinue.doors.cli.session import Session

# name -> (module, what it does)
COMMANDS = {
    "task": ("task", "Create tasks, look at them, end them."),
    "subagent": ("subagent", "Spawn subagents, wait for them, read their results."),
    "run": ("run_task", "Give a prompt to a team, or carry out a plan."),
    "gate": ("gate", "Answer the questions of blocked subagents."),
    "timeline": ("timeline", "What happened in a task, in order."),
    "mcp": ("mcp", "Subagents as tools of other agents."),
    "ui": ("ui", "Watch and act on a page in the browser."),
    "model": ("model", "Which models can be reached, and why not."),
    "types": ("types", "The kinds of subagents: list, show, make and import them."),
    "steward": ("upkeep", "The resident process of a root."),
    "doctor": ("upkeep", "What subagents can rely on here."),
    "verify": ("upkeep", "Whether database, logs and folders agree."),
    "gc": ("upkeep", "Remove what closed tasks no longer need."),
    "demo": ("demo", "Three subagents at work, in a few seconds."),
}


def _say_version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        from retinue.version import VERSION

        render.say(f"retinue {VERSION}")
        context.exit()


commands = Lazy(
    "retinue",
    later=COMMANDS,
    help="Delegate work to subagents: child processes under contract, whose end is recorded.",
    example="retinue demo",
    exits="""\
0 done
1 it failed, or was refused as things stand
2 the words of the command are wrong
3 no such task, subagent, gate, root, or no result yet
4 nothing settled in the time given, or nothing can
5 over a limit; nothing was done
6 database, logs and folders disagree
7 the isolation asked for is not to be had here
130 interrupted""",
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_say_version,
            help="Show the version.",
        )
    ],
)


def carry_out(words: list[str], session: Session) -> int:
    """The command was carried out; its exit code.

    Raises:
        BadInput: the words are none of ours.
        RetinueError: what the command itself says.
    """
    if "_RETINUE_COMPLETE" in os.environ:
        commands.main(prog_name="retinue")
    known: dict[str, Any] = {"obj": session, "terminal_width": render.columns()}
    try:
        with commands.make_context("retinue", list(words), **known) as context:
            code: Any = commands.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        where = error.ctx if isinstance(error, click.UsageError) else None
        hint = f"try '{where.command_path} --help'" if where else ""
        raise BadInput(error.format_message().rstrip("."), code="usage", hint=hint) from None
    return code if isinstance(code, int) else 0
