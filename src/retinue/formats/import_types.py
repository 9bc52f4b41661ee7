"""Import of other tools' agent definitions as subagent types.

Markdown with front matter   Claude Code, Gemini, opencode: the body is the instructions
TOML                         Codex: developer_instructions is the instructions

Name, description, skills, expected input and instructions are kept. Everything else belongs to
the configuration or to a spawn call here; it is dropped and reported.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from retinue.core.errors import BadInput
from retinue.core.ids import is_id, make_slug
from retinue.core.safe_text import shorten
from retinue.core.subagent_type import MAX_DESCRIPTION, SubagentType
from retinue.formats.profile_document import decode_text, make_type_error, split_front_matter
from retinue.formats.yaml_document import load_yaml

# Keys that are kept, and what to use instead of some that are dropped.
_KEPT = {"name", "description", "skills", "expected_input"}
_INSTEAD = {
    "model": "models are chosen in the configuration, under agents",
    "tools": "tools are given at each spawn: --tool NAME",
    "mcpServers": "its servers are not started",
    "mcp_servers": "its servers are not started",
    "sandbox_mode": "every subagent is isolated; see subagent_runtime_mode",
}
_KEY_LINE = re.compile(r"([A-Za-z_][A-Za-z0-9_-]*):(?:[ \t]+(.*))?")


@dataclass(frozen=True, kw_only=True)
class Imported:
    profile: SubagentType
    dropped: tuple[str, ...]  # keys that were not kept, in the order of the file
    notes: tuple[str, ...]


def import_profile(data: bytes, *, where: str, filename: str) -> Imported:
    """Make a subagent type from another tool's file, and report what was dropped.

    Raises:
        BadInput: the file is of an unknown kind, or lacks a required value.
    """
    path = PurePath(filename)
    text = decode_text(data, where)
    if path.suffix.lower() == ".toml":
        fields, body, notes = _parse_toml(text, where)
    elif path.suffix.lower() in (".md", ".markdown"):
        fields, body, notes = _parse_markdown(text, where)
    else:
        raise make_type_error(
            f"{where}: the file name must end in .md or .toml",
            hint="Claude Code, Gemini and opencode keep .md files, Codex .toml files",
        )
    name = _choose_name(fields.get("name"), path.stem, where, notes)
    description = _make_description(fields.get("description"), where, notes)
    if not body.strip():
        raise make_type_error(f"{where}: there are no instructions in it")
    dropped = tuple(key for key in fields if key not in _KEPT)
    notes += [f"{key}: {_INSTEAD[key]}" for key in dropped if key in _INSTEAD]
    profile = SubagentType(
        name=name,
        description=description,
        instructions=body.strip(),
        skills=_parse_names(fields.get("skills")),
        expected_input=_parse_names(fields.get("expected_input")),
        source=where,
    )
    return Imported(profile=profile, dropped=dropped, notes=tuple(notes))


def _parse_toml(text: str, where: str) -> tuple[dict[str, Any], str, list[str]]:
    try:
        fields = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # ValueError also covers integers with more digits than Python converts.
        raise make_type_error(f"{where}: not TOML: {error}") from None
    body = fields.pop("developer_instructions", "")
    if not isinstance(body, str):
        raise make_type_error(f"{where}: developer_instructions: expected a text")
    notes = []
    # Codex uses this key for a table of switches.
    if not isinstance(fields.get("skills", []), list):
        notes.append("skills: is a table, and was not carried over")
        del fields["skills"]
    return fields, body, notes


def _parse_markdown(text: str, where: str) -> tuple[dict[str, Any], str, list[str]]:
    front, body = split_front_matter(text, where)
    notes = []
    try:
        document = load_yaml(front, where=where, first_line=2)
        if not isinstance(document, dict):
            raise make_type_error(f"{where}: the front matter is not a mapping")
    except BadInput as error:
        # Other tools read the front matter line by line and accept what is not valid YAML.
        document = _parse_loose_front_matter(front)
        if not document.get("description"):
            raise make_type_error(error.message, error.hint) from None
        notes.append(f"read line by line: {error.message}")
    if not body.strip() and isinstance(document.get("prompt"), str):
        body = document.pop("prompt")
    return document, body, notes


def _parse_loose_front_matter(front: str) -> dict[str, Any]:
    """Read `key: value` lines literally; other lines continue the value."""
    found: dict[str, Any] = {}
    key = ""
    for line in front.splitlines():
        match = _KEY_LINE.fullmatch(line)
        if match and match[1] not in found:
            key = match[1]
            found[key] = (match[2] or "").strip().strip("\"'").replace("\\n", "\n")
        elif key and line.strip():
            found[key] = f"{found[key]}\n{line.strip()}".strip()
    return found


def _choose_name(given: object, stem: str, where: str, notes: list[str]) -> str:
    text = given.strip() if isinstance(given, str) else ""
    text = text or stem
    name = text if is_id(text) else make_slug(text, 64)
    if not name:
        raise make_type_error(f"{where}: name: {text[:80]!a} cannot be made into a name")
    if name != text:
        notes.append(f"name: {text[:80]!a} became {name!a}")
    return name


def _make_description(given: object, where: str, notes: list[str]) -> str:
    if not isinstance(given, str) or not given.strip():
        raise make_type_error(
            f"{where}: description: is missing", hint="describe when to use the type"
        )
    whole = " ".join(given.split())
    if len(whole) > MAX_DESCRIPTION:
        notes.append(f"description: cut after {MAX_DESCRIPTION} characters")
    return shorten(whole, MAX_DESCRIPTION)


def _parse_names(given: object) -> tuple[str, ...]:
    """Return the names in a list, or in a text separated by commas or lines."""
    if isinstance(given, str):
        given = [part.strip().removeprefix("- ") for part in re.split(r"[,\n]", given)]
    if not isinstance(given, list):
        return ()
    return tuple(each.strip() for each in given if isinstance(each, str) and each.strip())
