"""The carrier of verbs to a steward, over its socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

from retinue.domain.errors import StewardUnavailable
from retinue.domain.subagent import LEFT
from retinue.wire import protocol


class Remote:
    """One connection to a steward: any number of requests at once, told apart by their numbers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = count(1)
        self._answers: dict[int, asyncio.Queue[dict[str, Any] | None]] = {}
        self._listening = asyncio.create_task(self._listen())

    @property
    def lost(self) -> bool:
        """Whether the steward at the other end is gone."""
        return self._listening.done()

    async def call(self, verb: str, **params: Any) -> Any:
        result = None
        async for message in self._exchange(verb, params):
            result = message.get("result")
        return result

    async def stream(self, verb: str, **params: Any) -> AsyncIterator[Any]:
        async for message in self._exchange(verb, params):
            if "item" in message:
                yield message["item"]

    async def close(self) -> None:
        self.let_go()

    def let_go(self) -> None:
        """The steward has one client less; whatever was asked is taken back."""
        self._listening.cancel()
        self._writer.close()

    async def _exchange(self, verb: str, params: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        number = next(self._numbers)
        answers = self._answers[number] = asyncio.Queue()
        line = protocol.request(number, verb, given(params))
        over, leave = self._listening.done(), False
        try:
            self._writer.write(line)
            await self._writer.drain()
            while not over and (message := await answers.get()) is not None:
                over = "item" not in message
                if "error" in message:
                    raise protocol.error_from_json(message["error"])
                yield message
                if over:
                    return
        except ConnectionError:
            pass
        except asyncio.CancelledError as end:
            leave = LEFT in end.args
            raise
        finally:
            del self._answers[number]
            if not over:
                self._forget(number, leave)
        raise StewardUnavailable(
            "the steward ended while it was asked",
            code="steward_lost",
            hint="connect again: a new steward recovers what was under way",
        )

    def _forget(self, number: int, leave: bool) -> None:
        """The steward knows that nobody waits for this answer any more."""
        if not self._writer.is_closing():
            asked = {"request": number, "leave": leave}
            self._writer.write(protocol.request(next(self._numbers), protocol.FORGET, asked))

    async def _listen(self) -> None:
        try:
            while line := await self._reader.readline():
                message = protocol.decode(line)
                waiting = self._answers.get(message.get("id", 0))
                if waiting is not None:
                    waiting.put_nowait(message)
        except ConnectionError:
            pass
        finally:
            for waiting in self._answers.values():
                waiting.put_nowait(None)


def given(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters that were given: the steward knows the defaults of the others."""
    return {name: value for name, value in params.items() if value is not None}
