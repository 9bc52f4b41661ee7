"""Waiting for results and events. Waiters are woken by the journal; nothing polls."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from retinue.core.errors import PYTHON, BadInput, NothingToWaitFor, WaitTimedOut
from retinue.core.events import Recorded
from retinue.core.ids import TaskId, is_id
from retinue.core.lifecycle import State
from retinue.core.policy import require_wait
from retinue.core.subagent import Subagent
from retinue.ports import Records, Store, Tasks
from retinue.steward.journal import ANY, Found, Journal, Subscriber
from retinue.steward.plan_service import PlanService

# A client that polls for its results asks every half second; after this pause it counts as gone.
KEPT_SECONDS = 30.0

Place = tuple[TaskId, str]  # task and consumer


class Clock(Protocol):
    """The part of an event loop that tells the time and sets timers."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callable[[], None]) -> object: ...


@dataclass(frozen=True, kw_only=True)
class _Reservation:
    until: float
    client: object


class ReservedResults:
    """Results that `wait_any` skips: held by a blocking call, or kept for a client that polls.

    Holds are counted, because two calls may await the same result. Nothing here is stored: a
    restart of the steward drops all reservations.
    """

    def __init__(
        self,
        changed: Callable[[TaskId], None],
        clock: Callable[[], Clock] = asyncio.get_running_loop,
    ) -> None:
        self._changed = changed
        self._clock = clock
        self._names: dict[Place, Counter[str]] = defaultdict(Counter)
        self._kept: dict[Place, dict[str, _Reservation]] = {}
        self._looks_later = False

    def list_names(self, task: TaskId, consumer: str) -> Collection[str]:
        place = (task, consumer)
        return {*self._names.get(place, ()), *self._kept.get(place, ())}

    def hold(self, subagents: Sequence[Subagent], consumer: str) -> None:
        """Reserve these results for a blocking call until `end_hold`."""
        for subagent in subagents:
            self._names[subagent.task, consumer][subagent.id] += 1

    def end_hold(self, subagents: Sequence[Subagent], consumer: str) -> None:
        for subagent in subagents:
            key = (subagent.task, consumer)
            if key in self._names:
                self._names[key] -= Counter([subagent.id])
                if not self._names[key]:
                    del self._names[key]
            self._changed(subagent.task)

    def keep(self, subagents: Sequence[Subagent], consumer: str, *, client: object) -> None:
        """Reserve these results for a client for `KEPT_SECONDS` from now."""
        kept = _Reservation(until=self._clock().time() + KEPT_SECONDS, client=client)
        for subagent in subagents:
            self._kept.setdefault((subagent.task, consumer), {})[subagent.id] = kept
        self._look_later()

    def release(self, subagents: Sequence[Subagent], consumer: str) -> None:
        """End the reservation of results that their client has received."""
        for subagent in subagents:
            self._forget((subagent.task, consumer), [subagent.id])

    def leave(self, client: object) -> None:
        """End all reservations of a client that disconnected."""
        for place, kept in list(self._kept.items()):
            self._forget(place, [name for name, each in kept.items() if each.client is client])

    def _look_later(self) -> None:
        """Set a timer for the reservation that expires first."""
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
        # Wake waiters: results that are no longer reserved may be theirs.
        if names:
            self._changed(place[0])


CALLED_AWAY = "called_away"
PAGE = 500

Mine = Callable[[Subagent], bool]


class WaitService:
    """Blocking verbs: wait for a result, for all results, for events."""

    def __init__(
        self,
        *,
        journal: Journal,
        store: Store,
        records: Records,
        folders: Tasks,
        plans: PlanService,
    ) -> None:
        self._journal = journal
        self._store = store
        self._records = records
        self._folders = folders
        self._plans = plans
        self.reserved = ReservedResults(journal.wake)

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
        """Return the next settled subagent; each is delivered to a consumer once.

        Args:
            peek: return it without marking it as delivered.
            mine: selects subagents for this caller if several callers share a consumer.
            called: returns whether the caller has a message; checked at each change of the task.

        Raises:
            NothingToWaitFor: no subagent is running and all results were delivered. With a
                time-out, a call also waits for output that its parent has yet to integrate.
            WaitTimedOut: none settled in time, all are reserved for another call, or the caller
                has a message.
        """
        _require_name(consumer)
        known = self._records.get_task(task).id

        def look() -> Subagent | None:
            # Recomputed at each change: reservations come and go while this call waits.
            held = set(self.reserved.list_names(known, consumer))
            found = self._deliver_next(known, consumer, held, mine, peek=peek)
            if found is None and called():
                raise _make_called_away_error()
            if found is None and not held:
                self._require_work(known, patient=bool(timeout))
            return found

        try:
            return await self._wait_until(known, timeout, look)
        except WaitTimedOut as error:
            # The only results are reserved for another call: say so, instead of a bare time-out.
            late = error.code == WaitTimedOut.default_code
            reserved = self.reserved.list_names(known, consumer)
            if late and reserved and not self._store.is_busy(known):
                raise _make_kept_error() from None
            raise

    def take(
        self,
        task: TaskId,
        consumer: str,
        *,
        but: Collection[str],
        mine: Mine | None = None,
    ) -> Iterator[Subagent]:
        """Deliver all results that the consumer has not received, except those in `but`.

        Each is marked as delivered when it is yielded; stop iterating and the rest stays.
        """
        known = self._records.get_task(task).id
        held = {*self.reserved.list_names(known, consumer), *but}
        while (settled := self._deliver_next(known, consumer, held, mine)) is not None:
            yield settled

    def _deliver_next(
        self,
        task: TaskId,
        consumer: str,
        held: set[str],
        mine: Mine | None,
        *,
        peek: bool = False,
    ) -> Subagent | None:
        """Deliver the next result that is new to the consumer and `mine`."""
        # Peek until a match is found, then deliver: results of other callers stay undelivered.
        while mine is not None:
            found = self._store.deliver(task, consumer, peek=True, held=held)
            if found is None or mine(found):
                break
            held.add(found.id)
        return self._store.deliver(task, consumer, peek=peek, held=held)

    def tell(self, subagent: Subagent, consumer: str) -> bool:
        """Mark a result as delivered to the consumer; return whether it was new."""
        return self._store.mark_delivered(subagent, consumer)

    def revoke_delivery(self, subagent: Subagent, consumer: str) -> None:
        """Undo a delivery that did not reach the consumer, and wake other waiters."""
        self._store.revoke_delivery(subagent, consumer)
        self._journal.wake(subagent.task)

    async def wait_all(self, task: TaskId, *, timeout: float | None) -> None:
        """Wait until no subagent of the task runs or queues, and no plan run will start one.

        Raises:
            WaitTimedOut: some still run or queue.
        """
        known = self._records.get_task(task).id

        def look() -> bool | None:
            run = self._plans.get_run(known)
            # A plan run whose steps all wait for an answer starts nothing by itself.
            will_start = run is not None and not run.get_progress().asks
            return None if will_start or self._store.is_busy(known) else True

        await self._wait_until(known, timeout, look)

    async def follow(self, task: TaskId, *, after: int) -> AsyncIterator[Recorded]:
        """Yield every event after `after`, as it is recorded, until the task is closed."""
        known = self._records.get_task(task).id
        while True:
            # Subscribe before reading: an event recorded in between is not missed.
            change = self._journal.expect_change(known)
            while batch := self._records.list_events(known, after=after, limit=PAGE):
                for recorded in batch:
                    yield recorded
                after = batch[-1].seq
            if self._records.get_task(known).state == "closed":
                change.cancel()
                return
            await change

    def subscribe(self, subscriber: Subscriber) -> None:
        self._journal.subscribe(subscriber)

    async def wait_beyond(self, task: TaskId, *, after: int, seconds: float) -> None:
        """Wait for an event after `after` or the close of the task, at most `seconds`."""
        known = self._records.get_task(task)

        def is_reached() -> bool:
            now = self._records.get_task(known.id)
            return now.last_seq > after or now.state == "closed"

        await self._wait_condition(known.id, seconds, is_reached)

    async def wait_any_change(self, *, after: int, seconds: float) -> int:
        """Wait until the number of changes differs from `after`, at most `seconds`; return it."""
        await self._wait_condition(ANY, seconds, lambda: self._journal.changes != after)
        return self._journal.changes

    async def _wait_condition(
        self, task: TaskId, seconds: float, holds: Callable[[], bool]
    ) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._journal.wait_until(task, lambda: holds() or None)

    def _require_work(self, task: TaskId, *, patient: bool) -> None:
        """Raises:
        NothingToWaitFor: no subagent runs or queues, so none can settle.
        """
        if self._store.is_busy(task) or self._plans.get_run(task) is not None:
            return
        unclosed = self._records.list_unclosed(task)
        blocked = [each.id for each in unclosed if each.standing.blocked]
        waiting = [e.id for e in unclosed if e.standing.state is State.WAITING_FOR_MERGE]
        # Another caller may integrate the output. A caller without a time-out is not kept
        # waiting: it may be the one that has to integrate it.
        if waiting and patient:
            return
        hint = "spawn a subagent first; 'subagent result' shows an earlier result again"
        python = "spawn a subagent first; result() gives an earlier result again"
        if waiting:
            hint = f"{waiting[0]} waits to be merged: 'subagent integrate' joins its output"
            python = hint
        if blocked:
            hint = f"{blocked[0]} is blocked: answer what it asks; 'gate list' shows it"
            python = f"{blocked[0]} is blocked: answer what result() says it asks, with continue_()"
        raise NothingToWaitFor(
            f"no subagent is running in {task} and all results were delivered",
            hint=hint,
            hints={PYTHON: python},
        )

    async def _wait_until(
        self, task: TaskId, timeout: float | None, look: Callable[[], Found | None]
    ) -> Found:
        if timeout is None:
            timeout = self._folders.read_config(task).wait_timeout_seconds
        else:
            timeout = require_wait(timeout, "timeout_seconds")
        try:
            async with asyncio.timeout(timeout):
                return await self._journal.wait_until(task, look)
        except TimeoutError:
            raise WaitTimedOut(
                f"nothing settled within {timeout:g} s",
                hint="the subagents go on; wait again or cancel them",
            ) from None


def _require_name(consumer: str) -> None:
    if not is_id(consumer):
        raise BadInput(f"consumer {consumer[:40]!a} is not a name", code="invalid_id")


def _make_kept_error() -> WaitTimedOut:
    return WaitTimedOut(
        "the results so far are reserved for the client that spawned the subagents",
        code="kept_for_another",
        hint="wait again, or ask for the result by its id",
    )


def _make_called_away_error() -> WaitTimedOut:
    return WaitTimedOut(
        "a message arrived while waiting",
        code=CALLED_AWAY,
        hint="read it, then wait again",
    )
