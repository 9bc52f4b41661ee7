"""The command `retinue acp`."""

from __future__ import annotations

import sys

import click

from retinue.cli.options import CliCommand, missing_package, read_config
from retinue.cli.steward_session import CliSession
from retinue.core.errors import BadInput


@click.command(cls=CliCommand, example="retinue acp\nretinue acp --config @openai")
@click.option(
    "--config", metavar="FILE|@NAME", help="Configuration of new sessions. Default: the root's."
)
@click.pass_obj
def acp(session: CliSession, config: str | None) -> int:
    """Serve a team as an ACP agent to an editor, over standard input and output.

    Each session is a task, and each prompt a turn of one subagent, which reads the session's
    folder and writes to its own workspace. Questions of a subagent become permission requests.
    """
    if sys.__stdin__ is None or sys.__stdout__ is None:
        raise BadInput(
            "standard input or output is closed; ACP needs both",
            code="no_pipe",
            hint="let an editor start it",
        )
    try:
        from retinue.acp_server.acp_agent import run
    except ModuleNotFoundError as error:
        raise missing_package("the server", error, extra="mcp") from None
    run(session.find_folder(), read_config(config) if config else {})
    return 0
