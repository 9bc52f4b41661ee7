"""Writing to the store and telling everyone who waits for it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeVar

from retinue.domain.errors import RetinueError, StorageFailed
from retinue.domain.event import Event, Recorded
from retinue.domain.ids import TaskId
from retinue.domain.subagent import Subagent, Task
from retinue.ports import Admission, Facts, Outcome, Store, Writing

Subscriber = Callable[[TaskId, Sequence[Recorded]], None]
ANY = TaskId("")  # whoever waits for this one is woken by every task
Found = TypeVar("Found")


class Journal:
    """The store's only writer. Whoever awaits a change is woken by it, never by a clock."""

    def __init__(
        self,
        store: Store,
        subscribers: Sequence[Subscriber] = (),
        failpoint: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._store = store
        self._subscribers = list(subscribers)
        self._failpoint = failpoint
        self._waiters: dict[TaskId, list[asyncio.Future[None]]] = defaultdict(list)
        self.changes = 0  # how often anything was recorded, or anybody told to look again
        self._soon: list[tuple[Writing, asyncio.Future[None]]] = []

    def subscribe(self, subscriber: Subscriber) -> None:
        """The subscriber hears of every change from here on."""
        self._subscribers.append(subscriber)

    def create_task(self, task: Task, event: Event) -> None:
        self._publish(task.id, self._store.create_task(task, event))

    def admit(self, task: TaskId, admission: Admission) -> list[Subagent]:
        self.settle()
        subagents, recorded = self._store.admit(task, admission)
        self._failpoint("created")
        self._publish(task, recorded)
        return subagents

    def record(
        self, task: TaskId, events: Sequence[Event], facts: Facts | None = None
    ) -> list[Recorded]:
        self.settle()
        recorded = self._store.record(task, events, facts or Facts())
        self._publish(task, recorded)
        return recorded

    async def record_soon(self, task: TaskId, events: Sequence[Event], facts: Facts) -> None:
        """The same, in one commit with whatever else is ready to be recorded now.

        Whoever gives up waiting for it has recorded it all the same.

        Raises:
            IllegalTransition: an event does not fit where its subagent stands.
            StorageFailed: the disk refused.
        """
        loop = asyncio.get_running_loop()
        if not self._soon:
            loop.call_soon(self.settle)
        done = loop.create_future()
        self._soon.append(((task, events, facts), done))
        await done

    def settle(self) -> None:
        """All that was to be recorded soon is, in the order in which it was asked for.

        Whoever looks where somebody stands and then records what fits there begins with this.
        """
        soon, self._soon = self._soon, []
        if not soon:
            return
        nothing: Outcome = StorageFailed("nothing was recorded")
        outcomes = [nothing] * len(soon)  # unless what follows comes to its end
        try:
            outcomes = self._store.record_all([writing for writing, _ in soon])
        finally:  # they go on before anyone who is told of it
            for (_, done), outcome in zip(soon, outcomes, strict=True):
                if not done.done() and isinstance(outcome, RetinueError):
                    done.set_exception(outcome)
                elif not done.done():
                    done.set_result(None)
        told: dict[TaskId, list[Recorded]] = defaultdict(list)
        for ((task, _, _), _), outcome in zip(soon, outcomes, strict=True):
            if not isinstance(outcome, RetinueError):
                told[task] += outcome
        for task, recorded in told.items():
            self._publish(task, recorded)

    def next_change(self, task: TaskId) -> asyncio.Future[None]:
        """Done at the task's next recorded event. Ask before looking, then nothing is missed."""
        future = asyncio.get_running_loop().create_future()
        self._waiters[task].append(future)
        future.add_done_callback(lambda _: self._forget(task, future))
        return future

    async def until(self, task: TaskId, look: Callable[[], Found | None]) -> Found:
        """What `look` finds, asked now and again at each change of the task."""
        while True:
            change = self.next_change(task)
            try:
                found = look()
            except RetinueError:
                change.cancel()
                raise
            if found is not None:
                change.cancel()
                return found
            await change

    def _publish(self, task: TaskId, recorded: Sequence[Recorded]) -> None:
        if not recorded:
            return
        self._failpoint("committed")
        self.wake(task)  # they run after this, and before what subscribers put off
        for subscriber in self._subscribers:
            subscriber(task, recorded)
        self._failpoint("exported")

    def wake(self, task: TaskId) -> None:
        """Whoever waits for the task looks again."""
        self.changes += 1
        for future in [*self._waiters.pop(task, []), *self._waiters.pop(ANY, [])]:
            if not future.done():
                future.set_result(None)

    def _forget(self, task: TaskId, future: asyncio.Future[None]) -> None:
        waiting = self._waiters.get(task)
        if waiting and future in waiting:
            waiting.remove(future)
            if not waiting:
                del self._waiters[task]
