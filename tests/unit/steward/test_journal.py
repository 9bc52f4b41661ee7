"""The journal: group commit, its order, and its errors."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from retinue.core.errors import IllegalTransition, StorageFailed
from retinue.core.events import Event, Recorded
from retinue.core.ids import RunId, TaskId
from retinue.ports import EventFacts, Outcome, Store, Writing
from retinue.steward.journal import Journal, Subscriber

TASK = TaskId("site")


class Listed:
    """Fake store: remembers what came in one commit and refuses events called `no`."""

    def __init__(self) -> None:
        self.commits: list[list[str]] = []
        self.broken = False

    def record(self, task: TaskId, events: Sequence[Event], facts: EventFacts) -> list[Recorded]:
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
    """Return the outcome of each writer; all are ready in the same loop iteration."""

    async def play() -> list[Any]:
        journal = Journal(cast(Store, store), [told])
        asked = [journal.record_soon(TASK, [of(name)], EventFacts()) for name in names]
        return await asyncio.gather(*asked, return_exceptions=True)

    return asyncio.run(play())


def test_pending_writes_share_one_commit() -> None:
    store = Listed()
    assert together(store, "a", "b", "c") == [None, None, None]
    assert store.commits == [["a", "b", "c"]]


def test_writes_of_one_commit_are_published_together() -> None:
    heard: list[list[str]] = []
    names = ("a", "no", "c")
    together(Listed(), *names, told=lambda task, new: heard.append([r.event.summary for r in new]))
    assert heard == [["a", "c"]]


def test_only_the_refused_write_gets_the_error() -> None:
    first, second, third = together(Listed(), "a", "no", "c")
    assert (first, third) == (None, None)
    assert isinstance(second, IllegalTransition)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_failed_commit_fails_all_its_writers() -> None:
    store = Listed()
    store.broken = True
    assert [type(outcome) for outcome in together(store, "a", "b")] == [StorageFailed] * 2


def test_record_writes_pending_events_first() -> None:
    store = Listed()

    async def play() -> None:
        journal = Journal(cast(Store, store))
        life = asyncio.create_task(journal.record_soon(TASK, [of("soon")], EventFacts()))
        asyncio.get_running_loop().call_soon(journal.record, TASK, [of("now")])
        await life

    asyncio.run(play())
    assert store.commits == [["soon"], ["now"]]


def test_a_cancelled_writer_is_still_recorded() -> None:
    store = Listed()

    async def play() -> None:
        journal = Journal(cast(Store, store))
        life = asyncio.create_task(journal.record_soon(TASK, [of("a")], EventFacts()))
        await asyncio.sleep(0)
        life.cancel()
        await asyncio.wait([life])
        assert life.cancelled()

    asyncio.run(play())
    assert store.commits == [["a"]]
