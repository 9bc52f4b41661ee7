"""Lines of steward.log about what happens in the root, by level.

A subscriber of the journal like `webhooks`: the main program only chooses which ones there are.
`debug` writes every event, `info` those that a person looks for later, `warning` none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from retinue.core import events
from retinue.core.errors import BadInput
from retinue.core.events import Recorded
from retinue.core.ids import TaskId

VARIABLE = "RETINUE_LOG"
LEVELS = ("debug", "info", "warning")
# Shown at level info; debug shows every event, warning none.
SHOWN = frozenset(
    {
        events.TASK_CREATED,
        events.TASK_CLOSED,
        events.RUN_ENDED,
        events.GATE_BLOCKED,
        events.GATE_ANSWERED,
        events.SUBAGENT_FAILED,
        events.SUBAGENT_CLOSED,
        events.MERGE_FAILED,
        events.BUDGET_EXCEEDED,
        events.PROVIDER_COOLDOWN,
        events.NODE_LOST,
    }
)


def read_level(environment: Mapping[str, str]) -> str:
    """Return the level of steward.log: `info` unless RETINUE_LOG says otherwise.

    Raises:
        BadInput: the variable has another value.
    """
    level = environment.get(VARIABLE, "").strip().lower() or "info"
    if level not in LEVELS:
        raise BadInput(f"{VARIABLE} {level[:40]!a} is not one of {', '.join(LEVELS)}")
    return level


class ActivityLog:
    """Subscriber of the journal that writes one line for each event of interest."""

    def __init__(self, level: str, write: Callable[[str], None]) -> None:
        self._level = level
        self._write = write

    def __call__(self, task: TaskId, recorded: Sequence[Recorded]) -> None:
        for each in recorded:
            kind = each.event.type
            if self._level == "debug" or (self._level == "info" and kind in SHOWN):
                who = f"{task}/{each.event.subagent}" if each.event.subagent else task
                # A title or answer must not forge a line or move the cursor of a terminal.
                said = "".join(it if it.isprintable() else " " for it in each.event.summary)
                self._write(f"{who} {kind}: {said}")
