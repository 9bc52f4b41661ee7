"""The carrier of verbs to a steward, over its socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from typing import Any, cast

from retinue.domain.errors import BadInput, RetinueError, StewardUnavailable
from retinue.domain.subagent import LEFT
from retinue.steward.versions import refusal
from retinue.wire import protocol

Message = dict[str, Any]

LAST_WORDS = 65536  # bytes
ENDS_ITS_CHILDREN = ("subagent.spawn",)  # taken back, it takes along those it waits for
LOST: Message = {
    "error": protocol.error_to_json(
        StewardUnavailable(
            "the steward ended while it was asked",
            code="steward_lost",
            hint="connect again: a new steward recovers what was under way",
        )
    )
}


class Remote(asyncio.Protocol):
    """One connection to a steward: any number of requests at once, told apart by their numbers."""

    def __init__(self, most: int = protocol.MAX_REQUEST) -> None:
        """At most so many bytes are asked in one request."""
        self.lost = False  # whether the steward at the other end is gone
        self._word = LOST  # to whoever asks when it is
        self._most = most
        self._transport: asyncio.Transport
        self._lines = protocol.Lines()
        self._numbers = count(1)
        self._waiting: dict[int, Callable[[Message], None]] = {}

    async def call(self, verb: str, **params: Any) -> Any:
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

        def take(message: Message) -> None:
            if "item" not in message and not answer.done():
                answer.set_result(message)

        with self._asked(verb, params, take) as number:
            try:
                return self._sound(await answer).get("result")
            except asyncio.CancelledError as end:
                await self._take_back(verb, number, leave=LEFT in end.args)
                raise

    async def stream(self, verb: str, **params: Any) -> AsyncGenerator[Any, None]:
        answers: asyncio.Queue[Message] = asyncio.Queue()
        with self._asked(verb, params, answers.put_nowait) as number:
            try:
                while "item" in (message := self._sound(await answers.get())):
                    yield message["item"]
            except (asyncio.CancelledError, GeneratorExit):
                self._forget(number, leave=False)
                raise

    def close(self) -> None:
        """The steward has one client less; whatever was asked is taken back."""
        self._transport.close()
        self.connection_lost(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for line in self._lines.whole(data):
                self._hear(protocol.decode(line))
        except BadInput:  # no steward says that
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, ConnectionError):  # while it was asked: its last words lie unread
            with suppress(OSError), self._transport.get_extra_info("socket").dup() as end:
                self.data_received(end.recv(LAST_WORDS, socket.MSG_DONTWAIT))
        self.lost = True
        self._tell_all(LOST)

    def _hear(self, message: Message) -> None:
        number = message.get("id")
        if number is None:  # of something it could not read: whose it was, nobody knows
            said = message if "error" in message else LOST
            if not self._waiting:  # nobody was let in: for whoever asks first
                self._word = said
            self._tell_all(said)
            self._transport.abort()
        elif (take := self._waiting.get(number)) is not None:
            take(message)

    def _sound(self, message: Message) -> Message:
        """Raises:
        RetinueError: what the steward said instead.
        """
        if "error" in message:
            raise refusal(message["error"], self._transport.get_extra_info("socket"))
        return message

    def _tell_all(self, message: Message) -> None:
        for take in self._waiting.values():
            take(message)

    @contextmanager
    def _asked(
        self, verb: str, params: dict[str, Any], take: Callable[[Message], None]
    ) -> Iterator[int]:
        """The answer is taken as it comes; whoever leaves early tells the steward so."""
        number = next(self._numbers)
        self._transport.write(protocol.request(number, verb, given(params), self._most))
        self._waiting[number] = take
        if self.lost:
            take(self._word)
        try:
            yield number
        finally:
            del self._waiting[number]

    async def _take_back(self, verb: str, number: int, *, leave: bool) -> None:
        """Nobody waits for the answer; where it has children, those that end with it have."""
        if verb in ENDS_ITS_CHILDREN:
            with suppress(RetinueError):  # whoever is gone has nothing under way
                await self.call(protocol.FORGET, request=number, leave=leave, tell=True)
        else:
            self._forget(number, leave=leave)

    def _forget(self, number: int, *, leave: bool) -> None:
        if not self._transport.is_closing():
            asked = {"request": number, "leave": leave}
            self._transport.write(protocol.request(next(self._numbers), protocol.FORGET, asked))


async def connected(
    path: str | None = None,
    *,
    sock: socket.socket | None = None,
    most: int = protocol.MAX_REQUEST,
) -> Remote:
    """A steward that can be asked, by its socket's path or over a connection to it."""
    loop = asyncio.get_running_loop()
    _, remote = await loop.create_unix_connection(partial(Remote, most), path, sock=sock)
    return remote


def given(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters that were given: the steward knows the defaults of the others."""
    return {name: value for name, value in params.items() if value is not None}
