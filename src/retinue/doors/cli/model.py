"""Models: who could answer, and whether they can be reached."""

from __future__ import annotations

from typing import Any

import click

from retinue.doors.cli import render
from retinue.doors.cli.options import Verbs
from retinue.doors.cli.session import Session


@click.group(cls=Verbs, example="retinue model list")
def model() -> None:
    """Which models can be reached, and why not."""


@model.command("list", example="retinue model list --json")
@click.pass_obj
def list_(session: Session) -> None:
    """List providers; those that can be asked are asked for their models."""
    session.answer(session.call("model.list"), _view)


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
