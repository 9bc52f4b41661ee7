"""The commands `retinue mcp` and `retinue mcp install`."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from retinue.cli import render
from retinue.cli.options import CliCommand, LazyGroup, missing_package, parse_task_id, read_config
from retinue.cli.steward_session import CliSession, get_cwd
from retinue.core.errors import BadInput

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.delegation.task_session import Choice


OF_HTTP = {"host": "--host", "port": "--port", "names": "--allow-host"}


@click.group(
    cls=LazyGroup,
    later={"install": ("mcp_commands", "Add this server to an agent's configuration.")},
    invoke_without_command=True,
    example="retinue mcp\nretinue mcp --http --port 8765\nretinue mcp install claude",
)
@click.option(
    "--task", type=parse_task_id, metavar="TASK", help="The task to work in. Default: 'mcp'."
)
@click.option(
    "--config",
    metavar="FILE|@NAME",
    help="Configuration for a new task; an open task keeps its own.",
)
@click.option(
    "--plain-names",
    is_flag=True,
    help="List the tools by short names, such as wait_for_subagent; both kinds can be called.",
)
@click.option("--http", is_flag=True, help="Serve streamable HTTP, and print the address.")
@click.option("--host", default="127.0.0.1", metavar="H", help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="N",
    help="Port to listen on. Default: a free one.",
)
@click.option(
    "--allow-host",
    "names",
    multiple=True,
    metavar="NAME",
    help="A host name to accept requests for.",
)
@click.pass_context
def mcp(
    ctx: click.Context,
    /,
    task: str | None,
    config: str | None,
    plain_names: bool,
    http: bool,
    host: str,
    port: int,
    names: tuple[str, ...],
) -> int:
    """Serve subagents as MCP tools to other agents, over standard input and output or HTTP.

    All servers of a root share one task until it is closed. The task keeps the configuration
    it was created with. To change that, edit its task.yaml, or close the task: the next spawn
    creates a new one.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    session: CliSession = ctx.obj
    from pathlib import Path

    from retinue.delegation.task_session import Choice

    if not http:
        _require_none_of_http(ctx)
    given = read_config(config) if config else {}
    choice = Choice(
        folder=Path(get_cwd()),
        task=task or "",
        config_text=given.get("config_text", ""),
        config_name=given.get("config_name", ""),
        plain_names=plain_names,
    )
    try:
        if http:
            _serve_http(session, choice, host, port, names)
        else:
            _serve_stdio(session, choice)
    except ModuleNotFoundError as error:
        raise missing_package("the server", error, extra="mcp") from None
    return 0


def _require_none_of_http(ctx: click.Context) -> None:
    for name, option in OF_HTTP.items():
        if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise click.UsageError(f"{option} needs --http", ctx)


def _serve_stdio(session: CliSession, choice: Choice) -> None:
    from retinue.mcp_server.server_main import run

    if sys.__stdin__ is None or sys.__stdout__ is None:
        raise BadInput(
            "standard input or output is closed; MCP over stdio needs both",
            code="no_pipe",
            hint="let a client start it ('retinue mcp install'), or use --http",
        )
    if sys.stdin.isatty():
        sys.stderr.write("waiting for an MCP client; see 'retinue mcp install --help'\n")
    run(session.find_folder(), choice)


def _serve_http(
    session: CliSession, choice: Choice, host: str, port: int, names: tuple[str, ...]
) -> None:
    from retinue.mcp_server.http_transport import ListenAddress, run_http

    def print_address(url: str, token: Path) -> None:
        document = {"url": url, "token_file": str(token)}
        session.answer(
            document, lambda it: f"{it['url']}\ntoken: {render.escape_text(it['token_file'])}"
        )
        render.flush()

    run_http(
        session.find_folder(),
        choice,
        ListenAddress(host=host, port=port, names=names),
        print_address,
    )


CLIENTS = ("claude", "codex", "gemini", "opencode")


@click.command(
    cls=CliCommand,
    example="retinue mcp install claude\nretinue mcp install codex --yes --remove",
)
@click.argument("client", type=click.Choice(CLIENTS))
@click.option("--yes", is_flag=True, help="Write without asking.")
@click.option("--remove", is_flag=True, help="Remove the entry.")
@click.pass_obj
def install(session: CliSession, client: str, yes: bool, remove: bool) -> None:
    """Add this server to a client's configuration, after showing the diff."""
    from pathlib import Path

    from retinue.delegation.task_session import Choice
    from retinue.mcp_server.effective_limits import read_current_limits
    from retinue.mcp_server.install.client_configs import build_entry, plan_changes

    folder = session.find_folder()
    terms = read_current_limits(folder, Choice(folder=Path(get_cwd())))
    words = ["mcp"] if session.root is None else ["--root", str(folder), "mcp"]
    command = [*find_own_command(), *words]
    change = plan_changes(
        build_entry(client, command, terms, Path(get_cwd()), os.environ), remove=remove
    )
    document: dict[str, Any] = {"client": client, "file": str(change.file), "changed": False}
    if change.needed:
        if not session.json:
            render.print_line(render.escape_text(change.diff))
            render.flush()
        if not yes:
            _ask(str(change.file))
        change.carry_out()
        document |= {"changed": True, "diff": change.diff}
    session.answer(document, _view)


def _ask(file: str) -> None:
    """Ask for confirmation at the terminal.

    Raises:
        BadInput: the answer is not yes, or there is no terminal.
    """
    if sys.stdin is not None and sys.stdin.isatty():
        sys.stderr.write(f"Change {render.to_one_line(file)}? [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return
    raise BadInput("nothing was changed", code="not_confirmed", hint="repeat it with --yes")


def find_own_command() -> list[str]:
    """Return the command with which a client starts this installation."""
    found = shutil.which("retinue")
    mine = os.path.realpath(sys.argv[0])
    # The bin folder of a virtual environment is on the PATH of this shell, not of the client.
    lasting = found and not os.path.exists(os.path.join(os.path.dirname(found), "../pyvenv.cfg"))
    if found and lasting and os.path.realpath(found) == mine:
        return ["retinue"]
    if os.path.basename(mine) == "retinue" and os.access(mine, os.X_OK):
        return [os.path.abspath(sys.argv[0])]
    # -P: the client starts it in a project, and must not import a retinue.py from there.
    return [sys.executable, "-P", "-m", "retinue"]


def _view(document: dict[str, Any]) -> str:
    file = render.escape_text(document["file"])
    return f"{file} {'was changed' if document['changed'] else 'needs no change'}"
