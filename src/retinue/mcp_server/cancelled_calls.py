"""Record of calls that clients cancelled, and whether only because of a timeout."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from retinue.core.data_structures import BoundedDict

CANCELLED = "notifications/cancelled"
MOST = 1024
MOST_SESSIONS = 64
# Clients that cancel every call once they have its answer, by the name they send.
CANCEL_WHEN_ANSWERED = ("opencode",)
# Reasons that clients give when a call times out. Codex gives the second one for every reason, and
# the last one since 0.169; as that may be its timeout, the subagents run until their own deadline.
_TOO_LONG = re.compile(
    r"tim(e|ed)[ _-]?out|response future dropped|MCP request cancelled by caller", re.IGNORECASE
)

Key = tuple[str, str]  # session, request id


class CancelledCalls:
    """Cancellations, recorded before the SDK ends the call so that the call can ask why.

    A client ignores the answer to a call that it cancelled. If the answer is already on its way,
    its delivery is undone; but not of a client that cancels whatever was answered.
    """

    def __init__(self) -> None:
        # Both are bounded: a client may cancel ids that it never used.
        self._calls = BoundedDict[Key, bool](MOST)  # cancelled calls; True: by a timeout
        self._answers = BoundedDict[Key, Callable[[], None]](MOST)  # undo functions
        # By session: answers that delivered results, and how many of them were then cancelled.
        self._habits = BoundedDict[str, tuple[int, int]](MOST_SESSIONS)

    def note(self, message: Mapping[str, Any], session: str = "") -> None:
        """Record the cancellation if this message is one."""
        request = find_cancelled_request(message)
        if request is None:
            return
        if (session, request) in self._answers:
            answered, late = self._habits.get(session, (1, 0))
            self._habits[session] = (answered, late + 1)
            # Once may be a coincidence. A client that does so every time has read the answers.
            if late > 0 and late + 1 == answered:
                del self._answers[session, request]
                return
        reason = str(message["params"].get("reason", ""))
        self.take_back(request, session, cut=_TOO_LONG.search(reason) is not None)

    def take_back(self, request: object, session: str, *, cut: bool) -> None:
        """Record that the client no longer waits; with `cut` the work of the call continues."""
        key = (session, str(request))
        undo = self._answers.pop(key, None)
        if undo is not None:
            undo()
        else:
            self._calls[key] = cut

    def was_cut(self, request: object, session: str = "") -> bool:
        """Return whether a timeout ended the call; the record is removed."""
        return self._calls.pop((session, str(request)), False)

    def mark_answered(self, undo: Callable[[], None], request: object, session: str = "") -> None:
        """Record that the answer is on its way; call `undo` if its call is, or was, cancelled."""
        key = (session, str(request))
        if self._calls.pop(key, None) is None:
            self._answers[key] = undo
            count, late = self._habits.get(session, (0, 0))
            self._habits[session] = (count + 1, late)
        else:
            undo()


def find_cancelled_request(message: Mapping[str, Any]) -> str | None:
    """Return the id of the request that this message cancels, if it is a cancellation."""
    params = message.get("params")
    if message.get("method") != CANCELLED or "id" in message or not isinstance(params, Mapping):
        return None
    return str(params.get("requestId"))
