"""The server for agents, and its entry in their configuration."""

from __future__ import annotations

import click

from retinue.domain.errors import BadInput
from retinue.doors.cli.options import Lazy, read_text, task_id
from retinue.doors.cli.session import Session, here


@click.group(
    cls=Lazy,
    later={},
    invoke_without_command=True,
    example="retinue mcp\nretinue mcp --http --port 8765\nretinue mcp install claude",
)
@click.option("--task", type=task_id, metavar="TASK", help="Work in this task; 'mcp' without it.")
@click.option("--config", metavar="FILE", help="The configuration of the task it creates.")
@click.pass_context
def mcp(ctx: click.Context, task: str | None, config: str | None) -> int | None:
    """Serve subagents as tools to an agent, over standard input and output."""
    if ctx.invoked_subcommand is not None:
        return None
    session: Session = ctx.obj
    from pathlib import Path

    from retinue.delegating.desk import Choice

    try:
        from retinue.doors.mcp.running import run_stdio
    except ModuleNotFoundError as error:
        raise _not_installed(error) from None
    choice = Choice(
        folder=Path(here()),
        task=task or "",
        config_text=read_text(config, "configuration") if config else "",
        config_name=config or "",
    )
    run_stdio(session.folder(), choice)
    return 0


def _not_installed(error: ModuleNotFoundError) -> BadInput:
    return BadInput(
        f"the server needs a package that is not installed: {error.name}",
        code="missing_package",
        hint="pip install 'retinue[mcp]'",
    )
