"""Calls that a client ended only because they took it too long."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

CANCELLED = "notifications/cancelled"
MOST = 256
# What clients say when they stop waiting. Codex says the last whatever its reason was; since
# that may be its time limit, what it waited for goes on until its own deadline.
_TOO_LONG = re.compile(r"tim(e|ed)[ _-]?out|response future dropped", re.IGNORECASE)


class Cuts:
    """Noted before the call itself is ended, so that it knows why."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str, str], None] = {}

    def note(self, message: Mapping[str, Any], session: str = "") -> None:
        """If this takes a call back for its length, that is known of the call."""
        params = message.get("params")
        if message.get("method") != CANCELLED or not isinstance(params, Mapping):
            return
        if _TOO_LONG.search(str(params.get("reason", ""))):
            while len(self._calls) >= MOST:
                del self._calls[next(iter(self._calls))]
            self._calls[session, str(params.get("requestId"))] = None

    def was_cut(self, request: object, session: str = "") -> bool:
        """Whether the call was ended for its length; told once."""
        key = (session, str(request))
        return self._calls.pop(key, key) is None
