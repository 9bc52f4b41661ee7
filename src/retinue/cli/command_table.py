"""Table of the top-level commands, and the parser that dispatches to them."""

from __future__ import annotations

import os
from typing import Any

import click

from retinue.cli import render
from retinue.cli.options import LazyGroup
from retinue.cli.steward_session import CliSession
from retinue.core.errors import BadInput

# name -> (module, one-line help): `retinue --help` imports none of these modules
COMMANDS = {
    "task": ("task_commands", "Create, inspect, cancel and close tasks."),
    "subagent": ("subagent_commands", "Spawn subagents, wait for them, read their results."),
    "run": ("run_command", "Give a prompt to a team, or execute a plan."),
    "plan": ("plan_commands", "Check a plan, or draw its steps."),
    "gate": ("task_commands", "Answer the questions of blocked subagents."),
    "top": ("timeline_commands", "Watch the subagents of a root in the terminal."),
    "timeline": ("timeline_commands", "Show the events of a task in order."),
    "mcp": ("mcp_commands", "Serve subagents as MCP tools to other agents."),
    "acp": ("serve_commands", "Serve a team as an ACP agent to an editor."),
    "ui": ("serve_commands", "Watch and control tasks on a web page."),
    "agent": ("agent_commands", "List and check the coding agents of this machine."),
    "model": ("agent_commands", "List the reachable models; install a local one."),
    "types": ("type_commands", "List, show, create and import subagent types."),
    "nodes": ("cluster_commands", "List the machines that run subagents for this root."),
    "node": ("cluster_commands", "Let this machine run subagents for others."),
    "hub": ("cluster_commands", "Run the server through which stewards and nodes communicate."),
    "cluster": ("cluster_commands", "Connect this root to a hub."),
    "steward": ("maintenance_commands", "Run, show or stop the resident process of a root."),
    "service": ("service_commands", "Run the steward of a root as a systemd user service."),
    "metrics": ("service_commands", "Print figures of the root for Prometheus."),
    "doctor": ("maintenance_commands", "Check isolation, models and the root on this machine."),
    "verify": ("maintenance_commands", "Check that database, logs and folders agree."),
    "trust": ("trust_commands", "Trust a root that was cloned or copied."),
    "gc": ("maintenance_commands", "Remove files that closed tasks no longer need."),
    "backup": ("maintenance_commands", "Write a backup of the root, also while it works."),
    "restore": ("maintenance_commands", "Make a new root from a backup."),
    "demo": ("demo", "Run three subagents in a few seconds."),
    "docs": ("help_commands", "Read the documentation of this version."),
    "completion": ("help_commands", "Print a completion script for a shell."),
}


def _print_version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        from retinue.version import VERSION

        render.print_line(f"retinue {VERSION}")
        context.exit()


commands = LazyGroup(
    "retinue",
    later=COMMANDS,
    help="Delegate work to subagents: child processes with a contract and a recorded result.\n\n"
    "TASK and ID may be the beginning of an id if it is unique, or @last for the newest.",
    example="retinue demo",
    exits="""\
0 success
1 failed, or refused in the current state
2 invalid arguments
3 no such task, subagent, gate or root, or no result yet
4 the wait timed out, or there is nothing to wait for
5 limit reached; nothing was started
6 database, logs and folders disagree
7 the requested isolation is not available here
130 interrupted""",
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_print_version,
            help="Show the version.",
        )
    ],
)


def carry_out(words: list[str], session: CliSession) -> int:
    """Parse and run the command line; return its exit code.

    Raises:
        BadInput: the command line is invalid.
        RetinueError: the command failed.
    """
    # The shell asks for completions: click prints them and exits.
    if "_RETINUE_COMPLETE" in os.environ:
        commands.main(prog_name="retinue")
    known: dict[str, Any] = {"obj": session, "terminal_width": render.measure_columns()}
    try:
        with commands.make_context("retinue", list(words), **known) as context:
            code: Any = commands.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        # Usage errors get the same form as all others: a code, a sentence and a hint.
        where = error.ctx if isinstance(error, click.UsageError) else None
        hint = f"try '{where.command_path} --help'" if where else ""
        raise BadInput(error.format_message().rstrip("."), code="usage", hint=hint) from None
    return code if isinstance(code, int) else 0
