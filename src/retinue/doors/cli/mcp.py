"""The server for agents, and its entry in their configuration."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from retinue.domain.errors import BadInput
from retinue.doors.cli import render
from retinue.doors.cli.options import Lazy, read_config, task_id
from retinue.doors.cli.session import Session, here

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.delegating.desk import Choice

OF_HTTP = {"host": "--host", "port": "--port", "names": "--allow-host"}


@click.group(
    cls=Lazy,
    later={"install": ("mcp_install", "Enter this server into an agent's configuration.")},
    invoke_without_command=True,
    example="retinue mcp\nretinue mcp --http --port 8765\nretinue mcp install claude",
)
@click.option("--task", type=task_id, metavar="TASK", help="Work in this task; 'mcp' without it.")
@click.option(
    "--config",
    metavar="FILE|@NAME",
    help="The configuration of a task that it creates; an open one keeps its own.",
)
@click.option("--http", is_flag=True, help="Serve streamable HTTP, and print where.")
@click.option("--host", default="127.0.0.1", metavar="H", help="Listen here; loopback without it.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="A free one without it."
)
@click.option(
    "--allow-host", "names", multiple=True, metavar="NAME", help="A name clients may call it by."
)
@click.pass_context
def mcp(
    ctx: click.Context,
    /,
    task: str | None,
    config: str | None,
    http: bool,
    host: str,
    port: int,
    names: tuple[str, ...],
) -> int:
    """Serve subagents as tools to other agents, over standard input and output or HTTP.

    Servers of a root share one task until it is closed. It keeps the configuration that it was
    created with: to change that, edit its task.yaml, or close it, and the next spawn opens another.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    session: Session = ctx.obj
    from pathlib import Path

    from retinue.delegating.desk import Choice

    if not http:
        _require_none_of_http(ctx)
    given = read_config(config) if config else {}
    choice = Choice(folder=Path(here()), task=task or "", **given)
    try:
        if http:
            _listen(session, choice, host, port, names)
        else:
            _speak(session, choice)
    except ModuleNotFoundError as error:
        raise BadInput(
            f"the server needs a package that is not installed: {error.name}",
            code="missing_package",
            hint="pip install 'retinue[mcp]'",
        ) from None
    return 0


def _require_none_of_http(ctx: click.Context) -> None:
    for name, option in OF_HTTP.items():
        if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise click.UsageError(f"{option} is for HTTP: give --http", ctx)


def _speak(session: Session, choice: Choice) -> None:
    from retinue.doors.mcp.running import run

    if sys.__stdin__ is None or sys.__stdout__ is None:
        raise BadInput(
            "standard input or output is closed, and a client speaks through both",
            code="no_pipe",
            hint="'retinue mcp install' lets a client start it; --http needs no pipes",
        )
    if sys.stdin.isatty():
        sys.stderr.write("a client speaks here; 'retinue mcp install --help' names some\n")
    run(session.folder(), choice)


def _listen(session: Session, choice: Choice, host: str, port: int, names: tuple[str, ...]) -> None:
    from retinue.doors.mcp.listening import Address, run_http

    def say(url: str, token: Path) -> None:
        document = {"url": url, "token_file": str(token)}
        session.answer(document, lambda it: f"{it['url']}\ntoken: {render.plain(it['token_file'])}")
        render.flush()

    run_http(session.folder(), choice, Address(host=host, port=port, names=names), say)
