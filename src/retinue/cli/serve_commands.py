"""The commands `retinue ui` and `retinue acp`, which serve a page or an editor while they run."""

from __future__ import annotations

import os
import sys
import tempfile
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import click

from retinue.cli import collect_garbage, render
from retinue.cli.options import CliCommand, missing_package, read_config, read_text, whole
from retinue.cli.steward_session import CliSession
from retinue.core.errors import BadInput

if TYPE_CHECKING:
    from retinue.web.web_server import PageAddress


@click.command(
    cls=CliCommand,
    example="retinue ui\nretinue ui --port 8420 --no-open\nretinue ui --also ~/work/site",
)
@click.option(
    "--host",
    default="127.0.0.1",
    metavar="H",
    help="Address to listen on. Default: 127.0.0.1. Any but loopback needs --token-file.",
)
@click.option(
    "--port",
    callback=whole,
    default="0",
    metavar="N",
    help="Port to listen on; 0 takes a free one.",
)
@click.option(
    "--also",
    "others",
    multiple=True,
    metavar="DIR",
    help="Another project, or its .retinue folder, to show on the same page.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    help="File with a token of 16 characters or more, with which browsers sign in.",
)
@click.option("--open/--no-open", "opens", default=True, help="Open the link in a browser.")
@click.pass_obj
def ui(
    session: CliSession,
    host: str,
    port: int,
    others: tuple[str, ...],
    token_file: str | None,
    opens: bool,
) -> None:
    """Watch and control tasks on a web page.

    Prints a link that works once and signs in the browser that opens it. The page ends with
    this command; subagents continue.
    """
    token = read_text(token_file, "token").strip() if token_file else ""
    roots = list(dict.fromkeys([session.find_folder(), *map(_find_other_root, others)]))
    try:
        from retinue.web.web_server import serve
    except ModuleNotFoundError as error:
        raise missing_package("the page", error, extra="web") from None

    def announce(address: PageAddress) -> None:
        session.answer(
            {"link": address.link, "host": address.host, "port": address.port, "pid": os.getpid()},
            lambda it: f"{it['link']}\n(works once; Ctrl-C stops the server)",
        )
        render.flush()
        if opens and not session.json and sys.stdout.isatty():
            import webbrowser

            leading.append(_write_redirect_file(address.link))
            webbrowser.open(leading[0].as_uri())

    leading: list[Path] = []
    collect_garbage()
    try:
        serve(roots, host=host, port=port, token=token, announce=announce)
    finally:
        for file in leading:
            file.unlink(missing_ok=True)


def _find_other_root(name: str) -> Path:
    """Return the root that a folder is or has.

    Raises:
        NotFound: it is and has none.
    """
    from retinue.client.blocking_client import require_root
    from retinue.settings import FOLDER

    folder = Path(os.path.abspath(name))
    root = folder / FOLDER if (folder / FOLDER).is_dir() else folder
    require_root(root, "")
    return root


def _write_redirect_file(link: str) -> Path:
    """Write a private file that redirects a browser to the link."""
    # The link contains a secret. As an argument of the browser it would be visible to every
    # user in the process list; this file has mode 0600.
    descriptor, name = tempfile.mkstemp(prefix="retinue-", suffix=".html")
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(link)}">')
        file.write(f'<a href="{escape(link)}">Continue to Retinue</a>')
    return Path(name)


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
    collect_garbage()
    run(session.find_folder(), read_config(config) if config else {})
    return 0
