"""The `retinue types` commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from retinue.cli import render
from retinue.cli.options import CliGroup, read_config, read_text
from retinue.cli.steward_session import CliSession
from retinue.core.errors import BadInput, NotFound

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.core.subagent_type import Catalogue, SubagentType


@click.group(cls=CliGroup, example="retinue types list")
def types() -> None:
    """List, show, create and import subagent types.

    A type is a role in a file: its instructions, and when a parent should choose it. Use one
    with 'subagent spawn --type NAME'.
    """


@types.command("list", example="retinue types list --config @mixed")
@click.option("--config", metavar="FILE|@NAME", help="Configuration to check. Default: the root's.")
@click.pass_obj
def list_(session: CliSession, config: str | None) -> None:
    """List types: active, usable by name only, or not usable."""
    catalogue = _load_catalogue(session)
    configured = _read_configured(session, config)
    shown, warnings = catalogue.list_active(configured)
    active = {each.name for each in shown}
    available = catalogue.narrow(configured).names
    rows = [
        _to_row(each) | {"active": each.name in active, "available": each.name in available}
        for each in catalogue.types
    ]
    rows += [
        {"name": each.name, "origin": "project", "source": each.source}
        | {"active": False, "available": False}
        | {"error": {"code": each.code, "message": each.problem, "hint": each.hint}}
        for each in catalogue.broken
    ]
    render.warn({"warnings": warnings})
    session.answer(rows, _format_types)


@types.command(example="retinue types show explorer")
@click.argument("name", metavar="NAME")
@click.pass_obj
def show(session: CliSession, name: str) -> None:
    """Show a type: when to use it, what its brief should say, its instructions."""
    try:
        found = _load_catalogue(session).require(name)
    except BadInput as error:
        if error.code != "unknown_type":
            raise
        hint = "'retinue types list' lists the types, 'retinue types new NAME' creates one"
        raise NotFound(error.message, code=error.code, hint=hint) from None
    session.answer(_to_row(found) | {"instructions": found.instructions}, _format_profile)


@types.command(example="retinue types new reasoner")
@click.argument("name", metavar="NAME")
@click.pass_obj
def new(session: CliSession, name: str) -> None:
    """Create a type of this project from a template.

    Writes a file below .agent/subagent_types for you to edit. Never overwrites one.
    """
    from retinue.subagent_types.type_files import create

    path = create(_find_project(session), name)
    session.answer(_to_document(name, path), _format_made)


@types.command("import", example="retinue types import .claude/agents/reviewer.md")
@click.argument("file", metavar="FILE")
@click.pass_obj
def import_(session: CliSession, file: str) -> None:
    """Create a type of this project from another tool's file.

    Reads the Markdown of Claude Code, Gemini and opencode, and the TOML of Codex. Keys without
    a meaning here are left out and listed.
    """
    import os

    from retinue.formats.import_types import import_profile
    from retinue.subagent_types.type_files import add

    data = read_text(file, "definition").encode()
    found = import_profile(data, where=file, filename=os.path.basename(file))
    path = add(_find_project(session), found.profile)
    document = _to_document(found.profile.name, path)
    session.answer(
        document | {"dropped": list(found.dropped), "notes": list(found.notes)}, _format_imported
    )


def _find_project(session: CliSession) -> Path:
    return session.find_folder().parent


def _load_catalogue(session: CliSession) -> Catalogue:
    from retinue.subagent_types.type_files import load_catalogue

    return load_catalogue(_find_project(session))


def _to_document(name: str, path: Path) -> dict[str, Any]:
    from retinue.subagent_types.type_files import load_built_in

    replaced = name in {each.name for each in load_built_in()}
    return {"name": name, "path": str(path), "replaces_built_in": replaced}


def _read_configured(session: CliSession, config: str | None) -> list[str] | None:
    # Trust is not checked: the types are only displayed.
    default = session.find_folder() / "config.yaml"
    if config is None and not default.is_file():
        return None
    from retinue.formats.config_document import parse_config
    from retinue.formats.yaml_document import Place, load_yaml

    found = read_config(config or str(default))
    where = found["config_name"]
    lines = dict[Place, int]()
    document = load_yaml(found["config_text"], where=where, lines=lines)
    parsed = parse_config(document, where=where, lines=lines)
    return parsed.orchestrator.coordination.subagent_types


def _to_row(each: SubagentType) -> dict[str, Any]:
    return {
        "name": each.name,
        "description": each.description,
        "skills": list(each.skills),
        "expected_input": list(each.expected_input),
        "origin": "built-in" if each.built_in else "project",
        "source": each.source,
    }


def _format_types(rows: list[dict[str, Any]]) -> str:
    return render.format_table(
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


def _format_profile(row: dict[str, Any]) -> str:
    facts = render.format_facts(
        [
            ("type", row["name"]),
            ("use", row["description"]),
            ("skills", ", ".join(row["skills"])),
            ("from", row["source"]),
        ]
    )
    expected = [f"  - {render.to_one_line(item)}" for item in row["expected_input"]]
    heading = [render.format_strong("a brief for it should say"), *expected, ""] if expected else []
    return "\n".join([facts, "", *heading, render.escape_text(row["instructions"])])


def _format_made(document: dict[str, Any]) -> str:
    replaced = "\nit replaces the built-in type" if document["replaces_built_in"] else ""
    return f"{document['name']}\n{render.escape_text(document['path'])}{replaced}"


def _format_imported(document: dict[str, Any]) -> str:
    lines = [_format_made(document)]
    if document["dropped"]:
        lines.append(f"left out: {render.to_one_line(', '.join(document['dropped']))}")
    lines += [f"note: {render.to_one_line(note)}" for note in document["notes"]]
    return "\n".join(lines)
