"""Journal: the only writer of the store; notifies waiters and subscribers.

The loops that write until something holds are here too: retry while the disk is full, and drive
a run to its end, independent of clients.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import TypeVar

from retinue.core.errors import RetinueError, StorageFailed
from retinue.core.events import Event, Recorded
from retinue.core.ids import TaskId
from retinue.core.subagent import Subagent, Task
from retinue.ports import Admission, EventFacts, Outcome, Store, Writing

Subscriber = Callable[[TaskId, Sequence[Recorded]], None]
ANY = TaskId("")  # waiters for this one are woken by a change of any task
Found = TypeVar("Found")


class Journal:
    """Writer of events with group commit. Waiters are woken by changes; nothing polls."""

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
        self.changes = 0  # number of calls of `wake`
        self._soon: list[tuple[Writing, asyncio.Future[None]]] = []  # for the next group commit

    def subscribe(self, subscriber: Subscriber) -> None:
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
        self, task: TaskId, events: Sequence[Event], facts: EventFacts | None = None
    ) -> list[Recorded]:
        self.settle()
        recorded = self._store.record(task, events, facts or EventFacts())
        self._publish(task, recorded)
        return recorded

    async def record_soon(self, task: TaskId, events: Sequence[Event], facts: EventFacts) -> None:
        """Record events in a group commit with others that are ready in this loop iteration.

        The events are recorded even if the caller is cancelled while it waits.

        Raises:
            IllegalTransition: an event does not fit the state of its subagent.
            StorageFailed: the disk refused the write.
        """
        loop = asyncio.get_running_loop()
        if not self._soon:
            loop.call_soon(self.settle)
        done = loop.create_future()
        self._soon.append(((task, events, facts), done))
        await done

    def settle(self) -> None:
        """Write all pending events of `record_soon`, in order.

        Call it before reading a state on which the next event depends.
        """
        soon = self._soon
        self._soon = []
        if not soon:
            return
        outcomes: list[Outcome] = []
        try:
            outcomes = self._store.record_all([writing for writing, _ in soon])
        finally:
            # If the store raised, every caller gets an error; none is left waiting.
            outcomes = outcomes or [StorageFailed("nothing was recorded")] * len(soon)
            # Callers of `record_soon` continue before waiters and subscribers.
            for (_, done), outcome in zip(soon, outcomes, strict=True):
                if not done.done() and isinstance(outcome, RetinueError):
                    done.set_exception(outcome)
                elif not done.done():
                    done.set_result(None)
        by_task: dict[TaskId, list[Recorded]] = defaultdict(list)
        for ((task, _, _), _), outcome in zip(soon, outcomes, strict=True):
            if not isinstance(outcome, RetinueError):
                by_task[task] += outcome
        for task, recorded in by_task.items():
            self._publish(task, recorded)

    def expect_change(self, task: TaskId) -> asyncio.Future[None]:
        """Return a future for the task's next change; ask before reading, to miss none."""
        future = asyncio.get_running_loop().create_future()
        self._waiters[task].append(future)
        future.add_done_callback(lambda _: self._forget(task, future))
        return future

    async def wait_until(self, task: TaskId, look: Callable[[], Found | None]) -> Found:
        """Call `look` now and at each change of the task until it returns a value; return it."""
        while True:
            # Subscribe before looking: a change in between is not missed.
            change = self.expect_change(task)
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
        # Wake first: waiters then run before callbacks that subscribers schedule.
        self.wake(task)
        for subscriber in self._subscribers:
            subscriber(task, recorded)
        self._failpoint("exported")

    def wake(self, task: TaskId) -> None:
        """Let all waiters for the task look again."""
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


DELAYS_SECONDS = (0.1, 0.5, 1.0, 2.0, 5.0)  # the last one repeats


async def retry_while_storage_fails(
    write: Callable[[int], Awaitable[None]], complain: Callable[[str], None], name: str
) -> None:
    """Call `write` with the number of failures so far, until the disk accepts it.

    There is no last try: what is written here has happened and must not be lost.
    """
    failures = 0
    while True:
        try:
            return await write(failures)
        except StorageFailed as error:
            delay = DELAYS_SECONDS[min(failures, len(DELAYS_SECONDS) - 1)]
            complain(f"{name}: {error.message}; again in {delay} s")
        failures += 1
        await asyncio.sleep(delay)


RETRY_SECONDS = 2.0


async def run_to_end(
    task: TaskId,
    advance: Callable[[], Awaitable[bool]],
    journal: Journal,
    complain: Callable[[str], None],
) -> None:
    """Call `advance` at every change of the task until it returns that the run is over.

    After an expected error (a full disk, a broken task.yaml), log it and retry.
    """
    while True:
        # Subscribe before advancing: a change in between is not missed.
        change = journal.expect_change(task)
        try:
            if await advance():
                change.cancel()
                return
        except RetinueError as error:
            complain(f"run of {task}: {error.message}")
            change.cancel()
            await asyncio.sleep(RETRY_SECONDS)
            continue
        await change


class ActiveRuns:
    """Registry of the runs that this steward drives: at most one in each task."""

    def __init__(self, journal: Journal, complain: Callable[[str], None]) -> None:
        self._journal = journal
        self._complain = complain
        self._tasks: dict[TaskId, asyncio.Task[None]] = {}

    def __contains__(self, task: TaskId) -> bool:
        return task in self._tasks

    def begin(
        self, task: TaskId, coroutine: Coroutine[None, None, None], over: Callable[[], None]
    ) -> None:
        """Start driving a run; `over` is called at its end, before waiters are woken."""
        running = asyncio.get_running_loop().create_task(coroutine, name=f"run of {task}")
        self._tasks[task] = running
        running.add_done_callback(partial(self._on_ended, task, over))

    async def detach(self, joins: Iterable[asyncio.Task[None]] = ()) -> None:
        """Cancel all runs and these joins; the next steward resumes them."""
        pending = [*self._tasks.values(), *joins]
        for each in pending:
            each.cancel()
        if pending:
            await asyncio.wait(pending)

    def _on_ended(
        self, task: TaskId, over: Callable[[], None], coroutine: asyncio.Task[None]
    ) -> None:
        del self._tasks[task]
        over()
        if coroutine.cancelled():
            return
        if (error := coroutine.exception()) is not None:
            self._complain(f"run of {task}: {type(error).__name__}: {error}")
        self._journal.wake(task)
