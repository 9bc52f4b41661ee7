"""Calls that a client took back, be it only because they took it too long."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from retinue.domain.newest import Newest

CANCELLED = "notifications/cancelled"
MOST = 1024
# What clients say when they stop waiting. Codex says the last whatever its reason was; since
# that may be its time limit, what it waited for goes on until its own deadline.
_TOO_LONG = re.compile(r"tim(e|ed)[ _-]?out|response future dropped", re.IGNORECASE)

Key = tuple[str, str]  # a session, and a request of it


class Cuts:
    """Noted before the call itself is ended, so that it knows why.

    One that has its answer by then is not ended; but whoever takes a call back drops what still
    comes of it, so that the answer is undone.
    """

    def __init__(self) -> None:
        self._calls = Newest[Key, bool](MOST)  # taken back; whether for their length
        self._answers = Newest[Key, Callable[[], None]](MOST)  # how to undo them

    def note(self, message: Mapping[str, Any], session: str = "") -> None:
        """If this takes a call back, that is known of the call, or its answer is undone."""
        request = taken_back(message)
        if request is not None:
            reason = str(message["params"].get("reason", ""))
            self.take_back(request, session, cut=_TOO_LONG.search(reason) is not None)

    def take_back(self, request: object, session: str, *, cut: bool) -> None:
        """Nobody waits for the answer any more; a call that is only cut leaves its work going."""
        key = (session, str(request))
        undo = self._answers.pop(key, None)
        if undo is not None:
            undo()
        else:
            self._calls[key] = cut

    def was_cut(self, request: object, session: str = "") -> bool:
        """Whether the call was ended for its length; told once."""
        return self._calls.pop((session, str(request)), False)

    def answered(self, undo: Callable[[], None], request: object, session: str = "") -> None:
        """The answer is on its way, and undone if its call is, or was, taken back."""
        key = (session, str(request))
        if self._calls.pop(key, None) is None:
            self._answers[key] = undo
        else:
            undo()


def taken_back(message: Mapping[str, Any]) -> str | None:
    """The request that a client takes back with this message, if it does."""
    params = message.get("params")
    if message.get("method") != CANCELLED or "id" in message or not isinstance(params, Mapping):
        return None
    return str(params.get("requestId"))
