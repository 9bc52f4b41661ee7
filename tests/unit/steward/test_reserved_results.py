"""Reservations of results: expiry, disconnected clients, blocking calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from retinue.core.ids import TaskId
from retinue.steward.delivery import KEPT_SECONDS, Delivery, ReservedResults

TASK = TaskId("t")


class Stage:
    """A clock that the test moves, and the tasks whose waiters were woken."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[tuple[float, Callable[[], None]]] = []
        self.woken: list[TaskId] = []
        self.reserved = ReservedResults(self.woken.append, lambda: self)

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        self.calls.append((when, callback))

    def move_to(self, now: float) -> None:
        """Set the clock and run the callbacks that are due."""
        self.now = now
        due = [each for each in self.calls if each[0] <= now]
        self.calls = [each for each in self.calls if each[0] > now]
        for _, callback in due:
            callback()

    def names(self) -> set[str]:
        return set(self.reserved.list_names(TASK, "c"))


def subagents(*names: str) -> list[Any]:
    return [SimpleNamespace(task=TASK, id=name) for name in names]


def test_a_kept_result_is_free_once_its_reservation_expires() -> None:
    stage = Stage()
    stage.reserved.reserve_for_client(subagents("a", "b"), "c", client="one")
    stage.move_to(KEPT_SECONDS - 1)
    stage.reserved.reserve_for_client(subagents("b"), "c", client="one")
    assert stage.names() == {"a", "b"} and not stage.woken
    stage.move_to(KEPT_SECONDS)
    assert stage.names() == {"b"} and stage.woken == [TASK]
    stage.move_to(2 * KEPT_SECONDS - 1)
    assert not stage.names() and stage.woken == [TASK, TASK]
    assert not stage.calls


def test_results_kept_for_a_disconnected_client_are_free_at_once() -> None:
    stage = Stage()
    stage.reserved.reserve_for_client(subagents("a", "b"), "c", client="one")
    stage.reserved.reserve_for_client(subagents("b"), "c", client="two")
    stage.reserved.release_client("one")
    assert stage.names() == {"b"} and stage.woken == [TASK]
    stage.reserved.release_client("two")
    assert not stage.names()


def test_releasing_kept_results_does_not_end_the_hold_of_a_blocking_call() -> None:
    stage = Stage()
    with stage.reserved.reserve(subagents("a"), "c"):
        stage.reserved.reserve_for_client(subagents("a"), "c", client="one")
        stage.reserved.release(subagents("a"), "c")
        stage.reserved.release(subagents("a"), "c")
        assert stage.names() == {"a"}
    assert not stage.names()


def test_a_result_whose_reservation_ends_at_the_time_out_is_delivered() -> None:
    settled = subagents("a")[0]

    def deliver(task: TaskId, consumer: str, *, peek: bool, held: set[str]) -> Any:
        return None if settled.id in held else settled

    async def wait_until(task: TaskId, look: Callable[[], Any]) -> Any:
        assert look() is None, "it is reserved"
        delivery.reserved.release_client("one")
        raise TimeoutError

    store: Any = SimpleNamespace(deliver=deliver, is_busy=lambda task: False)
    records: Any = SimpleNamespace(get_task=lambda task: SimpleNamespace(id=task))
    journal: Any = SimpleNamespace(wake=lambda task: None, wait_until=wait_until)
    unused: Any = None
    delivery = Delivery(journal=journal, store=store, records=records, folders=unused, plans=unused)

    async def wait() -> Any:
        delivery.reserved.reserve_for_client([settled], "c", client="one")
        return await delivery.wait_any(TASK, timeout=0, consumer="c")

    assert asyncio.run(wait()) is settled
