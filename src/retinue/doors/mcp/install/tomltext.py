"""One table put into and taken out of TOML text, every other line left as it was."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from retinue.domain.errors import BadInput


def put(text: str, table: Sequence[str], values: Mapping[str, Any], where: str) -> str:
    """The text with the table; one of that name is replaced.

    Raises:
        BadInput: the text is no TOML, or says the same in a form that is not a table of its own.
    """
    rest = take(text, table, where)
    lines = [f"[{'.'.join(table)}]"]
    lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
    gap = "" if not rest or rest.endswith("\n\n") else "\n" if rest.endswith("\n") else "\n\n"
    found = rest + gap + "\n".join(lines) + "\n"
    _require(found, where)
    return found


def take(text: str, table: Sequence[str], where: str) -> str:
    """The text without the table and the tables within it."""
    document = _require(text, where)
    if not _holds(document, table):
        return text
    kept: list[str] = []
    inside = False
    for line in text.splitlines(keepends=True):
        header = re.match(r"\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(#.*)?$", line)
        if header is not None:
            names = [part.strip().strip("\"'") for part in header.group(1).split(".")]
            inside = names[: len(table)] == list(table)
        if not inside:
            kept.append(line)
    left = "".join(kept)
    rest = left.rstrip("\n") + "\n" if left.strip() else ""
    if _holds(_require(rest, where), table):
        raise BadInput(
            f"{where} has {'.'.join(table)} in a form that cannot be changed safely",
            code="bad_file",
            hint="make it a table of its own, or change it by hand",
        )
    return rest


def _require(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadInput(f"{where} is no TOML: {error}", code="bad_file", hint="mend it") from None


def _holds(document: Any, table: Sequence[str]) -> bool:
    for name in table:
        if not isinstance(document, dict) or name not in document:
            return False
        document = document[name]
    return True
