"""Asyncio client of the steward, over its Unix socket."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from typing import Any, cast

from retinue.client.blocking_client import make_refusal
from retinue.connections import LineBuffer
from retinue.core.errors import BadInput, RetinueError, StewardUnavailable
from retinue.core.subagent import LEFT
from retinue.formats import steward_protocol
from retinue.sockets import make_address

Message = dict[str, Any]

# Bytes to read from a connection that was reset
MAX_LAST_BYTES = 65536
# Time for a steward to end
LEAVE_SECONDS = 5.0
# Verbs whose cancellation also cancels the subagents that they wait for
CANCELS_SUBAGENTS = ("subagent.spawn",)
LOST: Message = {
    "error": steward_protocol.error_to_json(
        StewardUnavailable(
            "the steward ended during the request",
            code="steward_lost",
            hint="connect again: a new steward takes over the subagents",
        )
    )
}


class Remote(asyncio.Protocol):
    """Connection to a steward with concurrent requests, matched by number."""

    def __init__(self, most: int = steward_protocol.MAX_REQUEST) -> None:
        """`most`: the largest request in bytes."""
        # Set once the steward is gone
        self.lost = False
        self._ended = asyncio.Event()
        # The response to requests after that
        self._loss = LOST
        self._most = most
        self._transport: asyncio.Transport
        self._lines = LineBuffer()
        self._numbers = count(1)
        self._waiting: dict[int, Callable[[Message], None]] = {}

    async def call(self, verb: str, **params: Any) -> Any:
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

        def take(message: Message) -> None:
            if "item" not in message and not answer.done():
                answer.set_result(message)

        with self._send_request(verb, params, take) as number:
            try:
                return self._check_message(await answer).get("result")
            except asyncio.CancelledError as end:
                await self._cancel_request(verb, number, leave=LEFT in end.args)
                raise

    async def stream(self, verb: str, **params: Any) -> AsyncGenerator[Any, None]:
        answers: asyncio.Queue[Message] = asyncio.Queue()
        with self._send_request(verb, params, answers.put_nowait) as number:
            try:
                while "item" in (message := self._check_message(await answers.get())):
                    yield message["item"]
            except (asyncio.CancelledError, GeneratorExit):
                self._forget(number, leave=False)
                raise

    async def leave(self) -> None:
        """Send no more requests, and wait (bounded) until the steward closes the connection."""
        if not self.lost:
            self._transport.write_eof()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), LEAVE_SECONDS)

    @property
    def is_idle(self) -> bool:
        """Return whether no response is pending."""
        return not self._waiting

    def has_ended(self) -> bool:
        """Return whether the steward is gone, even if the event loop has not noticed yet."""
        if self.lost or self._transport.is_closing():
            return True
        state = select.poll()
        state.register(self._transport.get_extra_info("socket"), select.POLLRDHUP)
        return bool(state.poll(0))

    def close(self) -> None:
        """Close the connection; the steward cancels pending requests."""
        self._transport.close()
        self.connection_lost(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            # Without a limit, since an answer is as long as what was asked for.
            for line in self._lines.take_lines(data):
                self._on_message(steward_protocol.decode(line or b""))
        except BadInput:
            # The other end does not speak the protocol.
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        # After a failed write, the steward's last message may still be unread in the socket.
        if isinstance(exc, ConnectionError):
            with suppress(OSError), self._transport.get_extra_info("socket").dup() as end:
                self.data_received(end.recv(MAX_LAST_BYTES, socket.MSG_DONTWAIT))
        self.lost = True
        self._ended.set()
        self._answer_all(LOST)

    def _on_message(self, message: Message) -> None:
        number = message.get("id")
        # Without a number the steward could not parse a request, or refused the connection.
        if number is None:
            loss = message if "error" in message else LOST
            # No request is pending: keep the error for the first one.
            if not self._waiting:
                self._loss = loss
            self._answer_all(loss)
            self._transport.abort()
        elif (take := self._waiting.get(number)) is not None:
            take(message)

    def _check_message(self, message: Message) -> Message:
        """Raises:
        RetinueError: the message is an error.
        """
        if "error" in message:
            raise make_refusal(message["error"], self._transport.get_extra_info("socket"))
        return message

    def _answer_all(self, message: Message) -> None:
        for take in self._waiting.values():
            take(message)

    @contextmanager
    def _send_request(
        self, verb: str, params: dict[str, Any], take: Callable[[Message], None]
    ) -> Iterator[int]:
        """Send a request; within the block, `take` receives its responses."""
        number = next(self._numbers)
        self._transport.write(
            steward_protocol.encode_request(number, verb, drop_unset(params), self._most)
        )
        self._waiting[number] = take
        if self.lost:
            take(self._loss)
        try:
            yield number
        finally:
            del self._waiting[number]

    async def _cancel_request(self, verb: str, number: int, *, leave: bool) -> None:
        """Cancel a request at the steward; for a spawn, wait until its subagents have ended."""
        if verb in CANCELS_SUBAGENTS:
            # A lost steward has nothing left to cancel.
            with suppress(RetinueError):
                await self.call(steward_protocol.FORGET, request=number, leave=leave, tell=True)
        else:
            self._forget(number, leave=leave)

    def _forget(self, number: int, *, leave: bool) -> None:
        if not self._transport.is_closing():
            asked = {"request": number, "leave": leave}
            self._transport.write(
                steward_protocol.encode_request(next(self._numbers), steward_protocol.FORGET, asked)
            )


async def connect_steward(
    path: str | None = None,
    *,
    sock: socket.socket | None = None,
    most: int = steward_protocol.MAX_REQUEST,
) -> Remote:
    """Return a client for a steward's socket path or an open connection to it."""
    loop = asyncio.get_running_loop()
    make = partial(Remote, most)
    if path is None:
        _, remote = await loop.create_unix_connection(make, sock=sock)
    else:
        with make_address(path) as address:
            _, remote = await loop.create_unix_connection(make, address)
    return remote


def drop_unset(params: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters without None values; the steward knows their defaults."""
    return {name: value for name, value in params.items() if value is not None}
