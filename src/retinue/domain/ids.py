"""Names of things, and the one rule they all obey."""

from __future__ import annotations

import re
from typing import NewType

from retinue.domain.errors import BadInput

TaskId = NewType("TaskId", str)
RunId = NewType("RunId", str)
SubagentId = NewType("SubagentId", str)
MemberId = NewType("MemberId", str)

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def is_id(text: str) -> bool:
    """Whether a text may name a task or a subagent, and so a folder."""
    return _ID.fullmatch(text) is not None


def require_id(text: str, what: str) -> str:
    """The text itself, once it is known to be a safe name.

    Raises:
        BadInput: it could leave its folder, or cannot be typed.
    """
    if not is_id(text):
        raise BadInput(
            f"{what} {text[:80]!a} is not a valid id",
            code="invalid_id",
            hint="1 to 64 letters, digits, '_' or '-', starting with a letter or digit",
        )
    return text


def slug(text: str, limit: int = 40) -> str:
    """A readable id made of any text; empty when nothing of it can be kept."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    return "-".join(words)[:limit].strip("-")
