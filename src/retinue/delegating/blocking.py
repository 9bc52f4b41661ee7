"""Calls that block: what they wait for, and what becomes of it when they are ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from retinue.delegating.asking import Request, told_by
from retinue.domain.errors import RetinueError
from retinue.domain.subagent import LEFT

FIRST_BEAT_SECONDS = 1.0
BEAT_SECONDS = 5.0

Work = Coroutine[Any, Any, Any]


class Blocking:
    """Work that calls wait for, and that may go on when they are gone."""

    def __init__(
        self,
        running: Callable[[], Awaitable[str]],
        tell_again: Callable[[Sequence[str]], Work],
    ) -> None:
        """`running` says what is at work; `tell_again` undoes that ends were told."""
        self._running = running
        self._tell_again = tell_again
        self._ending: set[asyncio.Task[Any]] = set()

    async def result(
        self, request: Request, work: Work, when_cut: Callable[[], Work] | None = None
    ) -> Any:
        """What comes of it in the end; meanwhile the client hears what is running.

        A client that takes the call back ends what it blocked on. One that only cuts it for its
        length leaves it at work, to be waited for.
        """
        task = asyncio.create_task(work)
        began = time.monotonic()
        beat = FIRST_BEAT_SECONDS
        ended = False
        try:
            while not (await asyncio.wait({task}, timeout=beat))[0]:
                beat = BEAT_SECONDS
                with suppress(RetinueError):  # what is blocked on may well succeed
                    await request.report(time.monotonic() - began, await self._running())
            ended = True
            return task.result()
        finally:
            if not ended:
                self._leave(task, request.was_cut(), when_cut)

    def take_back(self, told: Sequence[str]) -> None:
        """The answer that told of these ends was lost: they are told again."""
        if told:
            self._later(asyncio.create_task(self._tell_again(told)))

    async def close(self) -> None:
        """Nothing that was begun here is left."""
        if self._ending:
            await asyncio.wait(self._ending)

    def _leave(
        self, task: asyncio.Task[Any], cut: bool, when_cut: Callable[[], Work] | None
    ) -> None:
        if task.done():
            if not task.cancelled() and task.exception() is None:
                self.take_back(told_by(task.result()))
            return
        self._later(task)
        task.cancel(LEFT if cut else None)
        if cut and when_cut is not None:
            self._later(asyncio.create_task(when_cut()))

    def _later(self, task: asyncio.Task[Any]) -> None:
        self._ending.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._ending.discard(task)
        if not task.cancelled():
            task.exception()  # nobody is left to be told
