"""What is kept for a client is kept from others only while that client is there and asks."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from retinue.domain.ids import TaskId
from retinue.service.held import KEPT_SECONDS, Held

TASK = TaskId("t")


class Stage:
    """A clock that stands until it is moved, and the tasks whose waiters were woken."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[tuple[float, Callable[[], None]]] = []
        self.woken: list[TaskId] = []
        self.held = Held(self.woken.append, lambda: self)

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        self.calls.append((when, callback))

    def move_to(self, now: float) -> None:
        """It is that late, and whatever was to be called by then has been."""
        self.now = now
        due = [each for each in self.calls if each[0] <= now]
        self.calls = [each for each in self.calls if each[0] > now]
        for _, callback in due:
            callback()

    def names(self) -> set[str]:
        return set(self.held.names(TASK, "c"))


def subagents(*names: str) -> list[Any]:
    return [SimpleNamespace(task=TASK, id=name) for name in names]


def test_what_nobody_asks_for_any_more_is_told_to_others_as_soon_as_that_is_certain() -> None:
    stage = Stage()
    stage.held.keep(subagents("a", "b"), "c", client="one")
    stage.move_to(KEPT_SECONDS - 1)
    stage.held.keep(subagents("b"), "c", client="one")
    assert stage.names() == {"a", "b"} and not stage.woken
    stage.move_to(KEPT_SECONDS)
    assert stage.names() == {"b"} and stage.woken == [TASK]
    stage.move_to(2 * KEPT_SECONDS - 1)
    assert not stage.names() and stage.woken == [TASK, TASK]
    assert not stage.calls


def test_what_was_kept_for_a_client_that_is_gone_is_told_to_others_at_once() -> None:
    stage = Stage()
    stage.held.keep(subagents("a", "b"), "c", client="one")
    stage.held.keep(subagents("b"), "c", client="two")
    stage.held.leave("one")
    assert stage.names() == {"b"} and stage.woken == [TASK]
    stage.held.leave("two")
    assert not stage.names()


def test_a_client_that_has_its_results_leaves_a_blocking_call_its_own() -> None:
    stage = Stage()
    stage.held.hold(subagents("a"), "c")
    stage.held.keep(subagents("a"), "c", client="one")
    stage.held.release(subagents("a"), "c")
    stage.held.release(subagents("a"), "c")
    assert stage.names() == {"a"}
    stage.held.let_go(subagents("a"), "c")
    assert not stage.names()
