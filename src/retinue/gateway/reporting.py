"""Whom the gateway tells what happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from retinue.domain.errors import RetinueError
from retinue.domain.event import Event
from retinue.domain.ids import TaskId


@dataclass(frozen=True, kw_only=True)
class Reporting:
    """The task's log, and whoever reads the steward's."""

    record: Callable[[TaskId, Event], object]
    complain: Callable[[str], None]

    def tell(self, task: TaskId, event: Event) -> None:
        """The event is on record, or its want is."""
        try:
            self.record(task, event)
        except RetinueError as error:
            self.complain(f"{task}: {event.type} is not on record: {error.message}")
