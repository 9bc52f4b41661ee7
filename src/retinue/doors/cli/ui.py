"""The page in a browser, for as long as this command runs."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from retinue.domain.errors import BadInput
from retinue.doors.cli import render
from retinue.doors.cli.options import Verb, read_text, whole
from retinue.doors.cli.session import Session

if TYPE_CHECKING:
    from retinue.doors.web.server import Address


@click.command(cls=Verb, example="retinue ui\nretinue ui --port 8420 --no-open")
@click.option("--host", default="127.0.0.1", metavar="H", help="Where to listen; loopback only.")
@click.option(
    "--port", callback=whole, default="0", metavar="N", help="The port; 0 takes a free one."
)
@click.option("--token-file", metavar="FILE", help="A secret to sign in with; others need it.")
@click.option("--open/--no-open", "opens", default=True, help="Open the link in a browser.")
@click.pass_obj
def ui(session: Session, host: str, port: int, token_file: str | None, opens: bool) -> None:
    """Watch tasks and act on them, on a page in the browser.

    Prints a link that works once: it gives the browser that opens it a session. The page ends
    with this command; what the subagents do does not.
    """
    token = read_text(token_file, "token").strip() if token_file else ""
    try:
        from retinue.doors.web.server import serve
    except ModuleNotFoundError as error:
        raise BadInput(
            f"the page needs {error.name}, which is not installed",
            code="extra_missing",
            hint="pip install 'retinue[web]'",
        ) from None

    def announce(address: Address) -> None:
        session.answer(
            {"link": address.link, "host": address.host, "port": address.port, "pid": os.getpid()},
            lambda it: f"{it['link']}\n(works once; Ctrl-C ends the page)",
        )
        render.flush()
        if opens and not session.json and sys.stdout.isatty():
            import webbrowser

            webbrowser.open(address.link)

    serve(session.folder(), host=host, port=port, token=token, announce=announce)
