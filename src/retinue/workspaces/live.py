"""What running subagents say of themselves right now."""

from __future__ import annotations

from retinue.domain.newest import Newest
from retinue.domain.recovery import Testimony
from retinue.domain.subagent import Subagent
from retinue.wire.testimony import parse_testimony
from retinue.workspaces.folder import FolderWorkspace
from retinue.workspaces.reader import JSON_LIMIT_BYTES, Unreadable, read_child_file

MAX_KEPT = 4096


class LiveTestimony:
    """A child may be caught in the middle of writing: then its last whole word stands."""

    def __init__(self, workspaces: FolderWorkspace) -> None:
        self._workspaces = workspaces
        self._last = Newest[tuple[str, str, int], Testimony](MAX_KEPT)

    def of(self, subagent: Subagent) -> Testimony | None:
        key = (subagent.task, subagent.id, subagent.standing.attempt)
        logs = self._workspaces.folder_of(subagent.task, subagent.id) / "full_logs"
        try:
            seen = parse_testimony(read_child_file(logs, "status.json", JSON_LIMIT_BYTES).data)
        except Unreadable:
            return self._last.get(key)
        if seen.phase is None and seen.problem:
            return self._last.get(key)
        self._last[key] = seen
        return seen
