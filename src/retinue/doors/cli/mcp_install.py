"""This server in another agent's configuration, and out of it again."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any

import click

from retinue.domain.errors import BadInput
from retinue.doors.cli import render
from retinue.doors.cli.options import Verb
from retinue.doors.cli.session import Session, here

CLIENTS = ("claude", "codex", "gemini", "opencode")


@click.command(
    cls=Verb,
    example="retinue mcp install claude\nretinue mcp install codex --yes --remove",
)
@click.argument("client", type=click.Choice(CLIENTS))
@click.option("--yes", is_flag=True, help="Write without asking.")
@click.option("--remove", is_flag=True, help="Take the entry out again.")
@click.pass_obj
def install(session: Session, client: str, yes: bool, remove: bool) -> None:
    """Enter this server into a client's configuration; the difference is shown first."""
    from pathlib import Path

    from retinue.delegating.desk import Choice
    from retinue.doors.mcp.install.clients import entry_for, planned
    from retinue.doors.mcp.reading import terms_now

    folder = session.folder()
    terms = terms_now(folder, Choice(folder=Path(here())))
    words = ["mcp"] if session.root is None else ["--root", str(folder), "mcp"]
    command = [*ourselves(), *words]
    change = planned(entry_for(client, command, terms, Path(here()), os.environ), remove=remove)
    document: dict[str, Any] = {"client": client, "file": str(change.file), "changed": False}
    if change.needed:
        if not session.json:
            render.say(render.plain(change.diff))
            render.flush()
        if not yes:
            _ask(str(change.file))
        change.carry_out()
        document |= {"changed": True, "diff": change.diff}
    session.answer(document, _view)


def _ask(file: str) -> None:
    """Raises:
    BadInput: nobody said yes.
    """
    if sys.stdin is not None and sys.stdin.isatty():
        sys.stderr.write(f"Change {render.one_line(file)}? [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return
    raise BadInput("nothing was changed", code="not_confirmed", hint="repeat it with --yes")


def ourselves() -> list[str]:
    """The command by which the client reaches this very program."""
    found = shutil.which("retinue")
    mine = os.path.realpath(sys.argv[0])
    # An environment's own folder of programs is on the path of this shell, and of few others.
    lasting = found and not os.path.exists(os.path.join(os.path.dirname(found), "../pyvenv.cfg"))
    if found and lasting and os.path.realpath(found) == mine:
        return ["retinue"]
    if os.path.basename(mine) == "retinue" and os.access(mine, os.X_OK):
        return [os.path.abspath(sys.argv[0])]
    return [sys.executable, "-m", "retinue"]


def _view(document: dict[str, Any]) -> str:
    file = render.plain(document["file"])
    return f"{file} {'has been changed' if document['changed'] else 'is as it should be'}"
