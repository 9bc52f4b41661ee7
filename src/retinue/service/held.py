"""What a consumer awaits in some other way, and is therefore not told when it waits for any."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from retinue.domain.ids import TaskId
from retinue.domain.subagent import Subagent

KEPT_SECONDS = 30.0  # for somebody who said to ask again, and asks every half second

Place = tuple[TaskId, str]  # a task, and a consumer in it


class Clock(Protocol):
    """As much of an event loop as tells the time, and when it has come."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callable[[], None]) -> object: ...


@dataclass(frozen=True, kw_only=True)
class _Kept:
    until: float
    client: object


class Held:
    """Held by calls that block, or kept for a client that asks now and then.

    Calls are counted, because the same may be awaited twice. All of it is gone with this process.
    """

    def __init__(
        self,
        changed: Callable[[TaskId], None],
        clock: Callable[[], Clock] = asyncio.get_running_loop,
    ) -> None:
        self._changed = changed
        self._clock = clock
        self._names: dict[Place, Counter[str]] = defaultdict(Counter)
        self._kept: dict[Place, dict[str, _Kept]] = {}
        self._looks_later = False

    def names(self, task: TaskId, consumer: str) -> Collection[str]:
        place = (task, consumer)
        return {*self._names.get(place, ()), *self._kept.get(place, ())}

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

    def keep(self, subagents: Sequence[Subagent], consumer: str, *, client: object) -> None:
        """These are not told to the consumer otherwise while the client asks for them."""
        kept = _Kept(until=self._clock().time() + KEPT_SECONDS, client=client)
        for subagent in subagents:
            self._kept.setdefault((subagent.task, consumer), {})[subagent.id] = kept
        self._look_later()

    def release(self, subagents: Sequence[Subagent], consumer: str) -> None:
        """The client that these were kept for has them."""
        for subagent in subagents:
            self._forget((subagent.task, consumer), [subagent.id])

    def leave(self, client: object) -> None:
        """The client is gone: what was kept for it is told to whoever waits."""
        for place, kept in list(self._kept.items()):
            self._forget(place, [name for name, each in kept.items() if each.client is client])

    def _look_later(self) -> None:
        """What nobody asks for any more is told to whoever waits, as soon as that is certain."""
        if self._kept and not self._looks_later:
            self._looks_later = True
            first = min(each.until for kept in self._kept.values() for each in kept.values())
            self._clock().call_at(first, self._look)

    def _look(self) -> None:
        self._looks_later = False
        now = self._clock().time()
        for place, kept in list(self._kept.items()):
            self._forget(place, [name for name, each in kept.items() if each.until <= now])
        self._look_later()

    def _forget(self, place: Place, names: Sequence[str]) -> None:
        kept = self._kept.get(place, {})
        for name in names:
            kept.pop(name, None)
        if not kept:
            self._kept.pop(place, None)
        if names:
            self._changed(place[0])
