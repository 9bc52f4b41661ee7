"""Requests that are repeated with the next steward if one is lost.

A lost steward may or may not have carried out its last request. Only idempotent requests are
repeated: reads, waits, and spawns with a key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from retinue.core.errors import StewardUnavailable

LOST = "steward_lost"
# Give up after this many lost stewards within the time: they share a cause.
LOSSES = 4
WITHIN_SECONDS = 60.0
REPEATABLE = frozenset(
    {
        "doctor",
        "gate.list",
        "model.list",
        "agent.list",
        "run.wait",
        "steward.status",
        "subagent.attend",
        "subagent.list",
        "subagent.logs",
        "subagent.result",
        "subagent.show",
        "subagent.wait_all",
        "subagent.wait_any",
        "task.list",
        "task.show",
        "verify",
    }
)


class LossCounter:
    """Counter of the stewards that were lost during one request."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=LOSSES)

    def add(self, now: float) -> None:
        """Count a lost steward.

        Raises:
            StewardUnavailable: too many were lost in a short time.
        """
        self._times.append(now)
        if len(self._times) == LOSSES and now - self._times[0] < WITHIN_SECONDS:
            raise StewardUnavailable(
                f"{LOSSES} stewards in a row ended during the request",
                code=LOST,
                hint="see steward.log in the root for the cause",
            )


def prepare_repeat(verb: str, params: Mapping[str, Any], seconds: float) -> dict[str, Any] | None:
    """Return the parameters for a repetition; None if the request is not repeatable.

    Args:
        seconds: the time since the first request. Waits are shortened by it.
    """
    again = dict(params)
    if verb == "subagent.spawn" and params.get("key"):
        return again | {"again": True}
    if verb.startswith("look.") or verb in REPEATABLE:
        if params.get("timeout_seconds") is not None:
            again["timeout_seconds"] = max(0.0, params["timeout_seconds"] - seconds)
        return again
    return None
