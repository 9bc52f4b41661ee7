"""Editing of one table in TOML text that leaves every other line as it is."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from retinue.core.errors import BadInput


def put(text: str, table: Sequence[str], values: Mapping[str, Any], where: str) -> str:
    """Return the text with the table at its end, replacing a table of that name.

    Raises:
        BadInput: the text is not TOML, or has the table in an inline or dotted form.
    """
    rest = take(text, table, where)
    lines = [f"[{'.'.join(table)}]"]
    lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
    gap = "" if not rest or rest.endswith("\n\n") else "\n" if rest.endswith("\n") else "\n\n"
    found = rest + gap + "\n".join(lines) + "\n"
    _require(found, where)
    return found


def take(text: str, table: Sequence[str], where: str) -> str:
    """Return the text without the table and its subtables.

    Raises:
        BadInput: the text is not TOML, or has the table in an inline or dotted form.
    """
    document = _require(text, where)
    if not _has_table(document, table):
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
    # Still there: it is written as an inline table or dotted keys, which have no header line.
    if _has_table(_require(rest, where), table):
        raise BadInput(
            f"{where} has {'.'.join(table)} in a form that cannot be changed safely",
            code="bad_file",
            hint="write it as a table of its own, or change it by hand",
        )
    return rest


def _require(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadInput(
            f"{where} is not valid TOML: {error}", code="bad_file", hint="fix the file"
        ) from None


def _has_table(document: Any, table: Sequence[str]) -> bool:
    for name in table:
        if not isinstance(document, dict) or name not in document:
            return False
        document = document[name]
    return True
