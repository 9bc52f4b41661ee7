"""Whose turn it is in each task, and what the others wait for."""

from __future__ import annotations

from collections.abc import Container

from retinue.domain.errors import BadInput, IntegrityBroken, StorageFailed
from retinue.domain.ids import SubagentId, TaskId
from retinue.domain.subagent import Subagent
from retinue.supervisor.outside import Outside

Key = tuple[TaskId, SubagentId]


class Turns:
    def __init__(self, outside: Outside, begun: Container[Key]) -> None:
        """Args: begun: those that somebody has begun with, whatever is recorded of them yet."""
        self._outside = outside
        self._begun = begun
        self._reasons: dict[TaskId, str] = {}

    def next(self, task: TaskId, running: int) -> list[SubagentId]:
        """Those who can start now, in their order.

        Where somebody is left, task.yaml is watched: people may raise its limit, or mend it.
        """
        found = self._next(task, running)
        if task in self._reasons and self.watch(task):
            found = self._next(task, running)  # what was saved before it was watched
        return found

    def watch(self, task: TaskId) -> bool:
        """An edit of task.yaml gives everybody another turn; whether only from now on, so that
        one may have been missed.
        """
        return self._outside.edits.watch(task)

    def anybody_waits(self, task: TaskId) -> bool:
        return task in self._reasons

    def waits_for(self, subagent: Subagent) -> str:
        """What keeps one that is not begun with from its turn; nothing for all others."""
        begun = (subagent.task, subagent.id) in self._begun
        return "" if begun else self._reasons.get(subagent.task, "")

    def _next(self, task: TaskId, running: int) -> list[SubagentId]:
        reason = self._reasons.pop(task, "")
        waiting = self._waiting(task, running + 2)  # one more tells whether anybody is left
        if not waiting:
            return []
        try:
            limit = self._outside.policy(task).max_concurrent
        except (BadInput, IntegrityBroken, StorageFailed) as error:  # a person's edit
            self._reasons[task] = f"a task.yaml that can be used: {error.message}"
            if self._reasons[task] != reason:
                self._outside.complain(f"{task}: nobody new is started: {error.message}")
            return []
        free = max(0, limit - running)
        if free > 1:
            waiting = self._waiting(task, running + free + 1)
        if len(waiting) > free:
            self._reasons[task] = f"a free slot: {limit} may work at once"
        return waiting[:free]

    def _waiting(self, task: TaskId, most: int) -> list[SubagentId]:
        """Those among the first created ones that nobody has begun with."""
        created = self._outside.records.waiting(task, most)
        return [name for name in created if (task, name) not in self._begun]
