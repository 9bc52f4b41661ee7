"""Loop that drives a run to its end, independent of clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial

from retinue.core.errors import RetinueError
from retinue.core.ids import TaskId
from retinue.steward.journal import Journal

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
