"""What a consumer awaits in some other way, and is therefore not told when it waits for any."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence

from retinue.domain.ids import TaskId
from retinue.domain.subagent import Subagent


class Held:
    """Counted, because the same may be awaited twice; gone with this process."""

    def __init__(self, changed: Callable[[TaskId], None]) -> None:
        self._changed = changed
        self._names: dict[tuple[TaskId, str], Counter[str]] = defaultdict(Counter)

    def names(self, task: TaskId, consumer: str) -> Collection[str]:
        return self._names.get((task, consumer), ())

    def hold(self, subagents: Sequence[Subagent], consumer: str) -> None:
        """These are not told to the consumer until they are let go."""
        for subagent in subagents:
            self._names[subagent.task, consumer][subagent.id] += 1

    def let_go(self, subagents: Sequence[Subagent], consumer: str) -> None:
        for subagent in subagents:
            key = (subagent.task, consumer)
            if key in self._names:
                self._names[key] -= Counter([subagent.id])
                if not self._names[key]:
                    del self._names[key]
            self._changed(subagent.task)
