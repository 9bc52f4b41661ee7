"""Ids of tasks, runs, subagents and members, and their syntax."""

from __future__ import annotations

import re
from typing import NewType

from retinue.core.errors import BadInput

TaskId = NewType("TaskId", str)
RunId = NewType("RunId", str)
SubagentId = NewType("SubagentId", str)
MemberId = NewType("MemberId", str)

LAST = "@last"  # stands for the newest task or subagent

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def is_id(text: str) -> bool:
    """Return whether a text is a valid id. Ids also name folders."""
    return _ID.fullmatch(text) is not None


def is_reference(text: str) -> bool:
    """Return whether a text may name an existing task or subagent: an id, its beginning, LAST."""
    return text == LAST or is_id(text)


def require_id(text: str, what: str) -> str:
    """Return the text if it is a valid id.

    Raises:
        BadInput: it is not.
    """
    if not is_id(text):
        raise BadInput(
            f"{what} {text[:80]!a} is not a valid id",
            code="invalid_id",
            hint="1 to 64 letters, digits, '_' or '-', starting with a letter or digit",
        )
    return text


def make_slug(text: str, limit: int = 40) -> str:
    """Return a readable id made from a text; empty if it has no letter or digit."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    return "-".join(words)[:limit].strip("-")
