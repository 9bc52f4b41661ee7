"""Driving: a run comes to its end by itself, whether anybody waits for it or not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial

from retinue.domain.errors import RetinueError
from retinue.domain.ids import TaskId
from retinue.supervisor.journal import Journal

RETRY_SECONDS = 2.0


async def drive(
    task: TaskId,
    advance: Callable[[], Awaitable[bool]],
    journal: Journal,
    complain: Callable[[str], None],
) -> None:
    """`advance`, asked again at every change of the task, has said that the run is over.

    What the disk or a broken task.yaml refuses is tried again: a run is not lost by that.
    """
    while True:
        change = journal.next_change(task)
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


class Driven:
    """The runs that are under way here: at most one in each task."""

    def __init__(self, journal: Journal, complain: Callable[[str], None]) -> None:
        self._journal = journal
        self._complain = complain
        self._courses: dict[TaskId, asyncio.Task[None]] = {}

    def __contains__(self, task: TaskId) -> bool:
        return task in self._courses

    def begin(
        self, task: TaskId, course: Coroutine[None, None, None], over: Callable[[], None]
    ) -> None:
        """The course is under way; `over` is called at its end, before anyone hears of that."""
        driven = asyncio.get_running_loop().create_task(course, name=f"run of {task}")
        self._courses[task] = driven
        driven.add_done_callback(partial(self._ended, task, over))

    async def detach(self, errands: Iterable[asyncio.Task[None]] = ()) -> None:
        """Nothing is driven any more, nor are these; the next holder of the root takes them up."""
        pending = [*self._courses.values(), *errands]
        for each in pending:
            each.cancel()
        if pending:
            await asyncio.wait(pending)

    def _ended(self, task: TaskId, over: Callable[[], None], course: asyncio.Task[None]) -> None:
        del self._courses[task]
        over()
        if course.cancelled():
            return
        if (error := course.exception()) is not None:
            self._complain(f"run of {task}: {type(error).__name__}: {error}")
        self._journal.wake(task)
