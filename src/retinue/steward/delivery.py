"""Delivery of results: each result goes to a consumer once.

A result is *reserved* while a blocking call or a client that polls is to receive it; others skip
it. It is *delivered* with the first response that carries it, on record, for the life of the task.
If the response is lost, it is *returned* to the queue and delivered again. There is no explicit
acknowledgement: a response that was sent and not reported as lost counts as received.

Waiters are woken by the journal; nothing polls.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from retinue.core.errors import PYTHON, BadInput, NothingToWaitFor, WaitTimedOut
from retinue.core.ids import TaskId, is_id
from retinue.core.lifecycle import State
from retinue.core.subagent import Subagent
from retinue.core.task_config import require_wait
from retinue.ports import Store, Tasks
from retinue.steward.journal import Found, Journal
from retinue.steward.plan_service import PlanService
from retinue.store.reads import Records

# A client that polls for its results asks every half second; after this pause it counts as gone.
KEPT_SECONDS = 30.0

Queue = tuple[TaskId, str]  # task and consumer


class Clock(Protocol):
    """The part of an event loop that tells the time and sets timers."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callable[[], None]) -> object: ...


@dataclass(frozen=True, kw_only=True)
class _Reservation:
    until: float
    client: object


class ReservedResults:
    """Results that `wait_any` skips: reserved by a blocking call, or for a client that polls.

    Reservations by calls are counted, because two calls may await the same result. Nothing here
    is stored: a restart of the steward drops all reservations.
    """

    def __init__(
        self,
        wake: Callable[[TaskId], None],
        get_clock: Callable[[], Clock] = asyncio.get_running_loop,
    ) -> None:
        """Args: wake: called with the task when one of its results is no longer reserved."""
        self._wake = wake
        self._get_clock = get_clock
        self._by_calls: dict[Queue, Counter[str]] = defaultdict(Counter)
        self._for_clients: dict[Queue, dict[str, _Reservation]] = {}
        self._timer_is_set = False

    def list_names(self, task: TaskId, consumer: str) -> Collection[str]:
        queue = (task, consumer)
        return {*self._by_calls.get(queue, ()), *self._for_clients.get(queue, ())}

    @contextmanager
    def reserve(self, subagents: Sequence[Subagent], consumer: str) -> Iterator[Callable[[], None]]:
        """Reserve these results for a blocking call; yield a function that ends it early."""
        for subagent in subagents:
            self._by_calls[subagent.task, consumer][subagent.id] += 1
        ended = False

        def end() -> None:
            nonlocal ended
            if not ended:
                ended = True
                self._end_call(subagents, consumer)

        try:
            yield end
        finally:
            end()

    def reserve_for_client(
        self, subagents: Sequence[Subagent], consumer: str, *, client: object
    ) -> None:
        """Reserve these results for a client that polls, for `KEPT_SECONDS` from now."""
        reservation = _Reservation(until=self._get_clock().time() + KEPT_SECONDS, client=client)
        for subagent in subagents:
            queue = self._for_clients.setdefault((subagent.task, consumer), {})
            queue[subagent.id] = reservation
        self._set_timer()

    def release(self, subagents: Sequence[Subagent], consumer: str) -> None:
        """End the reservation of results that their client has received."""
        for subagent in subagents:
            self._forget((subagent.task, consumer), [subagent.id])

    def release_client(self, client: object) -> None:
        """End all reservations of a client that disconnected."""
        for queue, reserved in list(self._for_clients.items()):
            names = [name for name, each in reserved.items() if each.client is client]
            self._forget(queue, names)

    def _end_call(self, subagents: Sequence[Subagent], consumer: str) -> None:
        for subagent in subagents:
            queue = (subagent.task, consumer)
            if queue in self._by_calls:
                self._by_calls[queue] -= Counter([subagent.id])
                if not self._by_calls[queue]:
                    del self._by_calls[queue]
            self._wake(subagent.task)

    def _set_timer(self) -> None:
        """Set a timer for the reservation that expires first."""
        if self._for_clients and not self._timer_is_set:
            self._timer_is_set = True
            reserved = self._for_clients.values()
            first = min(each.until for queue in reserved for each in queue.values())
            self._get_clock().call_at(first, self._expire)

    def _expire(self) -> None:
        self._timer_is_set = False
        now = self._get_clock().time()
        for queue, reserved in list(self._for_clients.items()):
            self._forget(queue, [name for name, each in reserved.items() if each.until <= now])
        self._set_timer()

    def _forget(self, queue: Queue, names: Sequence[str]) -> None:
        reserved = self._for_clients.get(queue, {})
        for name in names:
            reserved.pop(name, None)
        if not reserved:
            self._for_clients.pop(queue, None)
        # Wake waiters: results that are no longer reserved may be theirs.
        if names:
            self._wake(queue[0])


CALLED_AWAY = "called_away"

IsWanted = Callable[[Subagent], bool]


class Delivery:
    """Queue of settled results for each consumer of a task."""

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
        is_wanted: IsWanted | None = None,
        has_message: Callable[[], bool] = lambda: False,
    ) -> Subagent:
        """Return the next settled subagent; each is delivered to a consumer once.

        Args:
            peek: return it without marking it as delivered.
            is_wanted: selects subagents for this caller if several callers share a consumer.
            has_message: whether the caller has a message; checked at each change of the task.

        Raises:
            NothingToWaitFor: no subagent is running and all results were delivered. With a
                time-out, a call also waits for output that its parent has yet to integrate.
            WaitTimedOut: none settled in time, all are reserved for another call, or the caller
                has a message.
        """
        _require_name(consumer)
        task_id = self._records.get_task(task).id

        def look() -> Subagent | None:
            # Computed at each change: reservations come and go while this call waits.
            reserved = set(self.reserved.list_names(task_id, consumer))
            found = self._deliver_next(task_id, consumer, reserved, is_wanted, peek=peek)
            if found is None and has_message():
                raise _make_called_away_error()
            if found is None and not reserved:
                self._require_work(task_id, patient=bool(timeout), now=timeout == 0)
            return found

        try:
            return await self._wait_until(task_id, timeout, look)
        except WaitTimedOut as error:
            if error.code != WaitTimedOut.default_code:
                raise
            # A reservation may have ended since the last look: its result is this caller's now.
            found = look()
            if found is not None:
                return found
            # The only results are reserved for another call: say so, instead of a bare time-out.
            reserved = self.reserved.list_names(task_id, consumer)
            if reserved and not self._store.is_busy(task_id):
                raise _make_reserved_error() from None
            raise

    def take_all(
        self,
        task: TaskId,
        consumer: str,
        *,
        skip: Collection[str],
        is_wanted: IsWanted | None = None,
    ) -> Iterator[Subagent]:
        """Deliver all results that the consumer has not received, except those in `skip`.

        Each is marked as delivered when it is yielded; stop iterating and the rest stays.
        """
        task_id = self._records.get_task(task).id
        reserved = {*self.reserved.list_names(task_id, consumer), *skip}
        while (settled := self._deliver_next(task_id, consumer, reserved, is_wanted)) is not None:
            yield settled

    def _deliver_next(
        self,
        task: TaskId,
        consumer: str,
        skip: set[str],
        is_wanted: IsWanted | None,
        *,
        peek: bool = False,
    ) -> Subagent | None:
        """Deliver the next result that is new to the consumer and wanted."""
        # Peek until a match is found, then deliver: results of other callers stay undelivered.
        while is_wanted is not None:
            found = self._store.deliver(task, consumer, peek=True, held=skip)
            if found is None or is_wanted(found):
                break
            skip.add(found.id)
        return self._store.deliver(task, consumer, peek=peek, held=skip)

    def mark_delivered(self, subagents: Sequence[Subagent], consumer: str) -> list[Subagent]:
        """Mark results as delivered to the consumer; return those that were new to it."""
        return [each for each in subagents if self._store.mark_delivered(each, consumer)]

    def return_results(self, subagents: Sequence[Subagent], consumer: str) -> None:
        """Return results to the queue whose response was lost, and wake the waiters."""
        for subagent in subagents:
            self._store.revoke_delivery(subagent, consumer)
            self._journal.wake(subagent.task)

    async def wait_all(self, task: TaskId, *, timeout: float | None) -> None:
        """Wait until no subagent of the task runs or queues, and no plan run will start one.

        Raises:
            WaitTimedOut: some still run or queue.
        """
        task_id = self._records.get_task(task).id

        def look() -> bool | None:
            run = self._plans.get_run(task_id)
            # A plan run whose steps all wait for an answer starts nothing by itself.
            will_start = run is not None and not run.get_progress().waits_for_answer
            return None if will_start or self._store.is_busy(task_id) else True

        await self._wait_until(task_id, timeout, look)

    def _require_work(self, task: TaskId, *, patient: bool, now: bool) -> None:
        """Raises:
        NothingToWaitFor: no subagent runs or queues, so none can settle.
        """
        run = self._plans.get_run(task)
        # A run that only an answer can move is nothing to wait for, unless the caller has time.
        run_moves = run is not None and not (now and run.get_progress().waits_for_answer)
        if self._store.is_busy(task) or run_moves:
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
                hint="the subagents keep running; wait again or cancel them",
            ) from None


def _require_name(consumer: str) -> None:
    if not is_id(consumer):
        raise BadInput(f"consumer {consumer[:40]!a} is not a name", code="invalid_id")


def _make_reserved_error() -> WaitTimedOut:
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
