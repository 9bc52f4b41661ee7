"""The notes of tasks on disk: read as what anybody may have written, and watched for changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from retinue.domain import event as events
from retinue.domain.event import Recorded
from retinue.domain.ids import TaskId
from retinue.workspaces.reader import Unreadable, read_child_file
from retinue.workspaces.watching import Watched

FOLDER, FILE = "shared", "human-notes.md"
LIMIT_BYTES = 1024 * 1024


class NotesFolder(Watched):
    """Watches each task with an open gate, and touches it at each event."""

    def __init__(self, tasks: Path, complain: Callable[[str], None]) -> None:
        super().__init__(tasks, f"{FOLDER}/{FILE}", complain)

    def read(self, task: TaskId) -> str:
        """What stands in the notes; nothing where they are missing, or no plain file."""
        try:
            found = read_child_file(self._tasks / task / FOLDER, FILE, LIMIT_BYTES, cut=True)
        except Unreadable:
            return ""
        return found.data.decode("utf-8", "replace")

    def __call__(self, task: TaskId, recorded: Sequence[Recorded]) -> None:
        """Implements a subscriber of the journal."""
        if any(each.event.type == events.GATE_BLOCKED for each in recorded):
            self.watch(task)
        self.touch(task)
