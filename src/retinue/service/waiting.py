"""Waiting: woken by the store, never by a clock of our own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import suppress

from retinue.domain.errors import BadInput, NothingToWaitFor, WaitTimedOut
from retinue.domain.event import Recorded
from retinue.domain.ids import TaskId, is_id
from retinue.domain.policy import require_wait
from retinue.domain.subagent import Subagent
from retinue.ports import Records, Store, Tasks
from retinue.service.held import Held
from retinue.service.planrun import PlanRun
from retinue.supervisor.journal import ANY, Found, Journal, Subscriber

CALLED_AWAY = "called_away"
PAGE = 500

Mine = Callable[[Subagent], bool]


class Waiting:
    def __init__(
        self,
        journal: Journal,
        store: Store,
        records: Records,
        tasks: Tasks,
        run_of: Callable[[TaskId], PlanRun | None],
    ) -> None:
        """`run_of` gives what may start somebody in the task by itself, though nobody works."""
        self._run_of = run_of
        self._journal = journal
        self._store = store
        self._records = records
        self._tasks = tasks
        self.held = Held(journal.wake)

    async def wait_any(
        self,
        task: TaskId,
        *,
        timeout: float | None,
        consumer: str,
        peek: bool = False,
        mine: Mine | None = None,
        called: Callable[[], bool] = lambda: False,
    ) -> Subagent:
        """The next settled subagent; each is given to a consumer once.

        Args:
            mine: of several who ask as one consumer, whether it is for this one; the others'
                are left to them.
            called: whether something else wants whoever waits, asked at each change of the task.

        Raises:
            NothingToWaitFor: nobody is at work, and of whoever settled the consumer was told.
            WaitTimedOut: none settled in time, or only for another call; or it was called away.
        """
        _require_name(consumer)
        known = self._records.task(task).id

        def look() -> Subagent | None:
            held = set(self.held.names(known, consumer))
            found = self._next(known, consumer, held, mine, peek=peek)
            if found is None and called():
                raise _called_away()
            if found is None and not held:
                self._require_work(known)
            return found

        try:
            return await self._until(known, timeout, look)
        except WaitTimedOut as error:
            late = error.code == WaitTimedOut.default_code
            if late and self.held.names(known, consumer) and not self._store.is_busy(known):
                raise _kept() from None
            raise

    def take(
        self,
        task: TaskId,
        consumer: str,
        *,
        but: Collection[str],
        mine: Mine | None = None,
    ) -> Iterator[Subagent]:
        """What has settled since the consumer was last told; but for these.

        Of each it is told by being given it: what nobody goes on to is left.
        """
        known = self._records.task(task).id
        held = {*self.held.names(known, consumer), *but}
        while (settled := self._next(known, consumer, held, mine)) is not None:
            yield settled

    def _next(
        self,
        task: TaskId,
        consumer: str,
        held: set[str],
        mine: Mine | None,
        *,
        peek: bool = False,
    ) -> Subagent | None:
        """The next end that the consumer has not been told, and that is `mine`."""
        while mine is not None:
            found = self._store.deliver(task, consumer, peek=True, held=held)
            if found is None or mine(found):
                break
            held.add(found.id)
        return self._store.deliver(task, consumer, peek=peek, held=held)

    def tell(self, subagent: Subagent, consumer: str) -> bool:
        """The consumer has the result of this settled subagent: it is not told again.

        Whether it had not been told before.
        """
        return self._store.mark_delivered(subagent, consumer)

    def undeliver(self, subagent: Subagent, consumer: str) -> None:
        """The consumer was gone before it could be told."""
        self._store.undeliver(subagent, consumer)
        self._journal.wake(subagent.task)

    async def wait_all(self, task: TaskId, *, timeout: float | None) -> None:
        """No subagent of the task works or waits to, and no run of it is about to start one.

        Raises:
            WaitTimedOut: some still do.
        """
        known = self._records.task(task).id

        def look() -> bool | None:
            run = self._run_of(known)
            comes = run is not None and not run.course().asks
            return None if comes or self._store.is_busy(known) else True

        await self._until(known, timeout, look)

    async def follow(self, task: TaskId, *, after: int) -> AsyncIterator[Recorded]:
        """Every event from there on, as it is recorded, until the task is closed."""
        known = self._records.task(task).id
        while True:
            change = self._journal.next_change(known)
            while batch := self._records.events(known, after=after, limit=PAGE):
                for recorded in batch:
                    yield recorded
                after = batch[-1].seq
            if self._records.task(known).state == "closed":
                change.cancel()
                return
            await change

    def subscribe(self, subscriber: Subscriber) -> None:
        """The subscriber hears of every change from here on."""
        self._journal.subscribe(subscriber)

    async def beyond(self, task: TaskId, *, after: int, seconds: float) -> None:
        """The task has an event after that number, or is closed; or that many seconds passed."""
        known = self._records.task(task)

        def holds() -> bool:
            now = self._records.task(known.id)
            return now.last_seq > after or now.state == "closed"

        await self._by_then(known.id, seconds, holds)

    async def anything(self, *, after: int, seconds: float) -> int:
        """How many changes there were: another number than before, or that many seconds later."""
        await self._by_then(ANY, seconds, lambda: self._journal.changes != after)
        return self._journal.changes

    async def _by_then(self, task: TaskId, seconds: float, holds: Callable[[], bool]) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._journal.until(task, lambda: holds() or None)

    def _require_work(self, task: TaskId) -> None:
        """Raises:
        NothingToWaitFor: nobody works or waits to, so that nobody can settle.
        """
        if self._store.is_busy(task) or self._run_of(task) is not None:
            return
        blocked = [each.id for each in self._records.unclosed(task) if each.standing.blocked]
        hint = "spawn somebody first; 'subagent result' tells an end as often as it is asked"
        if blocked:
            hint = f"{blocked[0]} is blocked: answer what it asks; 'gate list' shows it"
        raise NothingToWaitFor(
            f"nobody is at work in {task}, and every end has been told", hint=hint
        )

    async def _until(
        self, task: TaskId, timeout: float | None, look: Callable[[], Found | None]
    ) -> Found:
        if timeout is None:
            timeout = self._tasks.config(task).wait_timeout_seconds
        else:
            timeout = require_wait(timeout, "timeout_seconds")
        try:
            async with asyncio.timeout(timeout):
                return await self._journal.until(task, look)
        except TimeoutError:
            raise WaitTimedOut(
                f"nothing settled within {timeout:g} s",
                hint="the subagents go on; wait again or cancel them",
            ) from None


def _require_name(consumer: str) -> None:
    if not is_id(consumer):
        raise BadInput(f"consumer {consumer[:40]!a} is not a name", code="invalid_id")


def _kept() -> WaitTimedOut:
    return WaitTimedOut(
        "what has ended is kept for whoever spawned it",
        code="kept_for_another",
        hint="wait again, or ask for the result by its id",
    )


def _called_away() -> WaitTimedOut:
    return WaitTimedOut(
        "there is a message for whoever waits",
        code=CALLED_AWAY,
        hint="hear it, then wait again",
    )
