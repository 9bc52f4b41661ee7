"""Definitions that other tools keep, read as subagent types.

Markdown with front matter   Claude Code, Gemini, opencode: the body is the instructions
TOML                         Codex: developer_instructions are

Name, description, skills and instructions are carried over. Everything else is a decision
that here belongs to a configuration or to a spawn; it is dropped, and told.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from retinue.domain.errors import BadInput
from retinue.domain.event import shorten
from retinue.domain.ids import is_id, slug
from retinue.domain.subagent_type import SubagentType
from retinue.wire.forms.profile import MAX_DESCRIPTION
from retinue.wire.profile import bad_type, decoded, split
from retinue.wire.yaml import load_yaml

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
    dropped: tuple[str, ...]  # keys that mean nothing here, in the order of the file
    notes: tuple[str, ...]


def import_profile(data: bytes, *, where: str, filename: str) -> Imported:
    """A type made of another tool's file, and what of it was left behind.

    Raises:
        BadInput: the file is none of the known kinds, or lacks what a type cannot do without.
    """
    path = PurePath(filename)
    text = decoded(data, where)
    if path.suffix.lower() == ".toml":
        fields, body, notes = _toml(text, where)
    elif path.suffix.lower() in (".md", ".markdown"):
        fields, body, notes = _markdown(text, where)
    else:
        raise bad_type(
            f"{where}: a name that ends in .md or .toml is expected",
            hint="Claude Code, Gemini and opencode keep .md files, Codex .toml files",
        )
    name = _name(fields.get("name"), path.stem, where, notes)
    description = _description(fields.get("description"), where, notes)
    if not body.strip():
        raise bad_type(f"{where}: there are no instructions in it")
    dropped = tuple(key for key in fields if key not in _KEPT)
    notes += [f"{key}: {_INSTEAD[key]}" for key in dropped if key in _INSTEAD]
    profile = SubagentType(
        name=name,
        description=description,
        instructions=body.strip(),
        skills=_list(fields.get("skills")),
        expected_input=_list(fields.get("expected_input")),
        source=where,
    )
    return Imported(profile=profile, dropped=dropped, notes=tuple(notes))


def _toml(text: str, where: str) -> tuple[dict[str, Any], str, list[str]]:
    try:
        fields = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a number beyond what Python reads
        raise bad_type(f"{where}: not TOML: {error}") from None
    body = fields.pop("developer_instructions", "")
    if not isinstance(body, str):
        raise bad_type(f"{where}: developer_instructions: expected a text")
    notes = []
    if not isinstance(fields.get("skills", []), list):  # Codex keeps a table of switches there
        notes.append("skills: is a table, and was not carried over")
        del fields["skills"]
    return fields, body, notes


def _markdown(text: str, where: str) -> tuple[dict[str, Any], str, list[str]]:
    front, body = split(text, where)
    notes = []
    try:
        document = load_yaml(front, where=where, first_line=2)
        if not isinstance(document, dict):
            raise bad_type(f"{where}: the front matter is not a mapping")
    except BadInput as error:
        # Tools that read line by line let people write what YAML does not allow.
        document = _line_by_line(front)
        if not document.get("description"):
            raise bad_type(error.message, error.hint) from None
        notes.append(f"read line by line: {error.message}")
    if not body.strip() and isinstance(document.get("prompt"), str):
        body = document.pop("prompt")
    return document, body, notes


def _line_by_line(front: str) -> dict[str, Any]:
    """Each `key: value` as it stands; what follows on other lines belongs to the value."""
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


def _name(given: object, stem: str, where: str, notes: list[str]) -> str:
    text = given.strip() if isinstance(given, str) else ""
    text = text or stem
    name = text if is_id(text) else slug(text, 64)
    if not name:
        raise bad_type(f"{where}: name: {text[:80]!a} cannot be made into a name")
    if name != text:
        notes.append(f"name: {text[:80]!a} became {name!a}")
    return name


def _description(given: object, where: str, notes: list[str]) -> str:
    if not isinstance(given, str) or not given.strip():
        raise bad_type(
            f"{where}: description: is missing", hint="say in it when the type is to be used"
        )
    whole = " ".join(given.split())
    if len(whole) > MAX_DESCRIPTION:
        notes.append(f"description: cut after {MAX_DESCRIPTION} characters")
    return shorten(whole, MAX_DESCRIPTION)


def _list(given: object) -> tuple[str, ...]:
    """Names in a list, or in a text with commas or one on each line."""
    if isinstance(given, str):
        given = [part.strip().removeprefix("- ") for part in re.split(r"[,\n]", given)]
    if not isinstance(given, list):
        return ()
    return tuple(each.strip() for each in given if isinstance(each, str) and each.strip())
