"""What is kept for a client is kept from others only while that client is there and asks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from retinue.domain.ids import TaskId
from retinue.service.held import KEPT_SECONDS, Held

TASK = TaskId("t")


class Stage:
    """A clock that stands until it is moved, and the tasks whose waiters were woken."""

    def __init__(self) -> None:
        self.now = 0.0
        self.woken: list[TaskId] = []
        self.held = Held(self.woken.append, lambda: self.now)

    def names(self) -> set[str]:
        return set(self.held.names(TASK, "c"))


def subagents(*names: str) -> list[Any]:
    return [SimpleNamespace(task=TASK, id=name) for name in names]


def test_what_nobody_asks_for_any_more_is_told_to_others() -> None:
    stage = Stage()
    stage.held.keep(subagents("a", "b"), "c", client="one")
    stage.now = KEPT_SECONDS - 1
    stage.held.keep(subagents("b"), "c", client="one")
    assert stage.names() == {"a", "b"}
    stage.now = KEPT_SECONDS
    assert stage.names() == {"b"}


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
