"""A program's time with a root: what it asks, in one event loop, until it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from retinue.domain.errors import Refused


class Carrier(Protocol):
    """Whoever carries a verb to the Service and its answer back."""

    async def call(self, verb: str, **params: Any) -> Any: ...

    def stream(self, verb: str, **params: Any) -> AsyncGenerator[Any, None]: ...


@dataclass
class Asked:
    cancelled: int  # how often its task had been cancelled before it asked
    told: bool = False  # that the visit is over


class Visit:
    """Carries verbs for as long as it lasts, so that none meets a root that is gone.

    Raises, with every verb:
        Refused: it is over, or another loop asks.
    """

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self._loop = asyncio.get_running_loop()
        self._asking: dict[asyncio.Task[Any], Asked] = {}
        self._quiet: asyncio.Future[None] | None = None  # since it is over: nobody asks any more

    async def call(self, verb: str, **params: Any) -> Any:
        with self._asked():
            return await self._carrier.call(verb, **params)

    async def stream(self, verb: str, **params: Any) -> AsyncGenerator[Any, None]:
        async with aclosing(self._carrier.stream(verb, **params)) as items:
            while True:
                with self._asked():
                    try:
                        item = await anext(items)
                    except StopAsyncIteration:
                        return
                yield item

    async def leave(self) -> None:
        """It is over, and whoever still waited has been told; what they asked is taken back."""
        self._quiet = self._loop.create_future()
        for task, asked in self._asking.items():
            if task.cancelling() <= asked.cancelled:  # else it is on its way out by itself
                asked.told = task.cancel()
        if self._asking:
            await self._quiet

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """The running task asks something. The end of the visit is a cancellation inside, where
        it takes the request back, and an error outside, where nobody had cancelled anything.
        """
        self._require_open()
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        asked = self._asking[task] = Asked(cancelled=task.cancelling())
        try:
            yield
        except asyncio.CancelledError:
            if asked.told and task.uncancel() <= asked.cancelled:
                raise _over() from None
            raise
        finally:
            del self._asking[task]
            if self._quiet is not None and not self._asking and not self._quiet.done():
                self._quiet.set_result(None)

    def _require_open(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise Refused(
                "this root was opened in another event loop",
                code="other_loop",
                hint="ask in that one: asyncio.run_coroutine_threadsafe() hands a call over",
            )
        if self._quiet is not None:
            raise _over()


def _over() -> Refused:
    return Refused(
        "the block that this root was opened for has been left",
        code="root_left",
        hint="ask inside of 'async with'; what was spawned goes on, what run() awaited was "
        "cancelled",
    )
