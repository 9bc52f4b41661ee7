"""Who holds the slots of a task."""

from __future__ import annotations

from collections.abc import Iterable

from retinue.domain.ids import SubagentId, TaskId
from retinue.domain.newest import Newest
from retinue.domain.subagent import Subagent
from retinue.store.database import Database

MOST_TASKS = 256


class Slots:
    """Read once and then followed: a row holds a whole contract, so that counting a thousand of
    them at each spawn would read megabytes.
    """

    def __init__(self, database: Database) -> None:
        self._db = database
        self._holders = Newest[TaskId, set[SubagentId]](MOST_TASKS)

    def held(self, task: TaskId) -> int:
        """To be asked before the transaction that is under way, if any, has moved anybody."""
        holders = self._holders.get(task)
        if holders is None:
            rows = self._db.rows("slot_holders", task_id=task)
            holders = self._holders[task] = {SubagentId(name) for (name,) in rows}
        return len(holders)

    def follow(self, task: TaskId, moved: Iterable[Subagent]) -> None:
        """They stand like this now, which is committed."""
        if (holders := self._holders.get(task)) is None:
            return
        for each in moved:
            if each.standing.holds_slot and not each.contract.is_root:
                holders.add(each.id)
            else:
                holders.discard(each.id)
