"""Subagent types: which there are, what they say, and new ones for a project."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from retinue.domain.errors import BadInput, NotFound
from retinue.doors.cli import render
from retinue.doors.cli.options import Verbs, read_config, read_text
from retinue.doors.cli.session import Session

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.domain.subagent_type import Catalogue, SubagentType


@click.group(cls=Verbs, example="retinue types list")
def types() -> None:
    """The kinds of subagents: list, show, make and import them.

    A type is a role in a file: its instructions, and when a parent should choose it. Give one
    with 'subagent spawn --type NAME'.
    """


@types.command("list", example="retinue types list --config @mixed")
@click.option(
    "--config", metavar="FILE|@NAME", help="Whose active types; without it the root's own."
)
@click.pass_obj
def list_(session: Session, config: str | None) -> None:
    """List types: shown to parents, had by name only, or not at all."""
    catalogue, configured = _catalogue(session), _configured(session, config)
    shown, warnings = catalogue.active(configured)
    active, available = {each.name for each in shown}, catalogue.narrowed(configured).names
    rows = [
        _row(each) | {"active": each.name in active, "available": each.name in available}
        for each in catalogue.types
    ]
    rows += [
        {"name": each.name, "origin": "project", "source": each.source}
        | {"active": False, "available": False}
        | {"error": {"code": each.code, "message": each.problem, "hint": each.hint}}
        for each in catalogue.broken
    ]
    render.warn({"warnings": warnings})
    session.answer(rows, _view)


@types.command(example="retinue types show explorer")
@click.argument("name", metavar="NAME")
@click.pass_obj
def show(session: Session, name: str) -> None:
    """Show a type: when to use it, what to tell it, its instructions."""
    try:
        found = _catalogue(session).require(name)
    except BadInput as error:
        if error.code != "unknown_type":
            raise
        hint = "'retinue types list' shows them, 'retinue types new NAME' makes one"
        raise NotFound(error.message, code=error.code, hint=hint) from None
    session.answer(_row(found) | {"instructions": found.instructions}, _profile)


@types.command(example="retinue types new reasoner")
@click.argument("name", metavar="NAME")
@click.pass_obj
def new(session: Session, name: str) -> None:
    """Start a type of this project from the template.

    It is a file below .agent/subagent_types, to be edited. An existing one is left alone.
    """
    from retinue.subagent_types.writing import create

    path = create(_project(session), name)
    session.answer(_document(name, path), _made)


@types.command("import", example="retinue types import .claude/agents/reviewer.md")
@click.argument("file", metavar="FILE")
@click.pass_obj
def import_(session: Session, file: str) -> None:
    """Make a type of this project from another tool's file.

    Markdown as Claude Code, Gemini and opencode keep it, or TOML as Codex does. Keys that have
    no meaning here are left out, and named.
    """
    import os

    from retinue.subagent_types.writing import add
    from retinue.wire.foreign import import_profile

    data = read_text(file, "definition").encode()
    found = import_profile(data, where=file, filename=os.path.basename(file))
    path = add(_project(session), found.profile)
    document = _document(found.profile.name, path)
    session.answer(
        document | {"dropped": list(found.dropped), "notes": list(found.notes)}, _imported
    )


def _project(session: Session) -> Path:
    return session.folder().parent


def _catalogue(session: Session) -> Catalogue:
    from retinue.subagent_types.loading import discover

    return discover(_project(session))


def _document(name: str, path: Path) -> dict[str, Any]:
    from retinue.subagent_types.loading import built_in

    replaced = name in {each.name for each in built_in()}
    return {"name": name, "path": str(path), "replaces_built_in": replaced}


def _configured(session: Session, config: str | None) -> list[str] | None:
    default = session.folder() / "config.yaml"
    if config is None and not default.is_file():
        return None
    from retinue.wire.config import parse_config
    from retinue.wire.yaml import Place, load_yaml

    found = read_config(config or str(default))
    where, lines = found["config_name"], dict[Place, int]()
    document = load_yaml(found["config_text"], where=where, lines=lines)
    parsed = parse_config(document, where=where, lines=lines)
    return parsed.orchestrator.coordination.subagent_types


def _row(each: SubagentType) -> dict[str, Any]:
    return {
        "name": each.name,
        "description": each.description,
        "skills": list(each.skills),
        "expected_input": list(each.expected_input),
        "origin": "built-in" if each.built_in else "project",
        "source": each.source,
    }


def _view(rows: list[dict[str, Any]]) -> str:
    return render.table(
        ("TYPE", "ACTIVE", "FROM", "DESCRIPTION"),
        [
            (
                row["name"] or "-",
                "yes" if row["active"] else "by name" if row["available"] else "no",
                row["origin"],
                row["description"] if "error" not in row else f"broken: {row['error']['message']}",
            )
            for row in rows
        ],
    )


def _profile(row: dict[str, Any]) -> str:
    facts = render.facts(
        [
            ("type", row["name"]),
            ("use", row["description"]),
            ("skills", ", ".join(row["skills"])),
            ("from", row["source"]),
        ]
    )
    expected = [f"  - {render.one_line(item)}" for item in row["expected_input"]]
    heading = [render.strong("a brief for it should say"), *expected, ""] if expected else []
    return "\n".join([facts, "", *heading, render.plain(row["instructions"])])


def _made(document: dict[str, Any]) -> str:
    replaced = "\nit takes the place of the built-in type" if document["replaces_built_in"] else ""
    return f"{document['name']}\n{render.plain(document['path'])}{replaced}"


def _imported(document: dict[str, Any]) -> str:
    lines = [_made(document)]
    if document["dropped"]:
        lines.append(f"left out: {render.one_line(', '.join(document['dropped']))}")
    lines += [f"note: {render.one_line(note)}" for note in document["notes"]]
    return "\n".join(lines)
