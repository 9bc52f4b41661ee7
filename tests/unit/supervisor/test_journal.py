"""The journal: what is ready at the same time is written together, in the order it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from retinue.domain.errors import IllegalTransition, StorageFailed
from retinue.domain.event import Event, Recorded
from retinue.domain.ids import RunId, TaskId
from retinue.ports import Facts, Outcome, Store, Writing
from retinue.supervisor.journal import Journal, Subscriber

TASK = TaskId("site")


class Listed:
    """Stands in for a store: remembers what came in one commit, refuses events called `no`."""

    def __init__(self) -> None:
        self.commits: list[list[str]] = []
        self.broken = False

    def record(self, task: TaskId, events: Sequence[Event], facts: Facts) -> list[Recorded]:
        (outcome,) = self.record_all([(task, events, facts)])
        assert isinstance(outcome, list)
        return outcome

    def record_all(self, writings: Sequence[Writing]) -> list[Outcome]:
        if self.broken:
            raise MemoryError
        names = [events[0].summary for _, events, _ in writings]
        self.commits.append(names)
        return [IllegalTransition("no") if name == "no" else [recorded(name)] for name in names]


def recorded(name: str) -> Recorded:
    return Recorded(
        seq=1, ts="", task=TASK, run=RunId("r"), step_idx=None, contract_sha256=None, event=of(name)
    )


def of(name: str) -> Event:
    return Event(type="x", summary=name)


def together(store: Listed, *names: str, told: Subscriber = lambda task, new: None) -> list[Any]:
    """How each came out, of lives that are all ready in the same turn."""

    async def play() -> list[Any]:
        journal = Journal(cast(Store, store), [told])
        asked = [journal.record_soon(TASK, [of(name)], Facts()) for name in names]
        return await asyncio.gather(*asked, return_exceptions=True)

    return asyncio.run(play())


def test_all_that_are_ready_share_one_commit() -> None:
    store = Listed()
    assert together(store, "a", "b", "c") == [None, None, None]
    assert store.commits == [["a", "b", "c"]]


def test_what_shares_a_commit_is_told_at_once() -> None:
    heard: list[list[str]] = []
    names = ("a", "no", "c")
    together(Listed(), *names, told=lambda task, new: heard.append([r.event.summary for r in new]))
    assert heard == [["a", "c"]]


def test_one_that_is_refused_hears_it_alone() -> None:
    first, second, third = together(Listed(), "a", "no", "c")
    assert (first, third) == (None, None)
    assert isinstance(second, IllegalTransition)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_nobody_waits_for_a_commit_that_broke_off() -> None:
    store = Listed()
    store.broken = True
    assert [type(outcome) for outcome in together(store, "a", "b")] == [StorageFailed] * 2


def test_what_must_be_recorded_now_comes_after_what_was_asked_before() -> None:
    store = Listed()

    async def play() -> None:
        journal = Journal(cast(Store, store))
        life = asyncio.create_task(journal.record_soon(TASK, [of("soon")], Facts()))
        asyncio.get_running_loop().call_soon(journal.record, TASK, [of("now")])
        await life

    asyncio.run(play())
    assert store.commits == [["soon"], ["now"]]


def test_whoever_gives_up_has_recorded_it_all_the_same() -> None:
    store = Listed()

    async def play() -> None:
        journal = Journal(cast(Store, store))
        life = asyncio.create_task(journal.record_soon(TASK, [of("a")], Facts()))
        await asyncio.sleep(0)
        life.cancel()
        await asyncio.wait([life])
        assert life.cancelled()

    asyncio.run(play())
    assert store.commits == [["a"]]
