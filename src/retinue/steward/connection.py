"""One client of a steward, from its first request to its last answer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any, cast

from retinue.app import App, caller
from retinue.domain.errors import (
    BadInput,
    IntegrityBroken,
    LimitExceeded,
    Refused,
    RetinueError,
)
from retinue.domain.newest import Newest
from retinue.domain.subagent import LEFT, Subagent
from retinue.files import RESERVE
from retinue.sockets import peer
from retinue.steward import delegated
from retinue.steward.guests import Guests, Intake
from retinue.steward.known import KNOWN, STREAMS
from retinue.steward.params import LARGEST, Params
from retinue.wire import protocol

UNDOABLE = 64  # answers of one client that it may still say it never took


class Connection(asyncio.Protocol):
    """One client. Its requests are answered side by side; they end with it.

    Where the steward ends first, only their waiting does: what they had started goes on.
    """

    def __init__(
        self,
        app: App,
        stop: Callable[[], None],
        serve: Callable[[asyncio.Task[None]], None],
        guests: Guests,
    ) -> None:
        self._app = app
        self._stop = stop
        self._serve = serve
        self._guests = guests
        self._child: Subagent | None = None  # whose process is at the other end, if it is one's
        self._intake: Intake | None = None  # of a child
        self._transport: asyncio.Transport
        self._lines = protocol.Lines(protocol.MAX_REQUEST)
        self._over = asyncio.Event()  # nothing more is asked
        self._flowing = asyncio.Event()  # the client reads as fast as it is told
        self._flowing.set()
        self._requests: set[asyncio.Task[None]] = set()
        self._under_way: dict[int, asyncio.Task[None]] = {}  # by the client's numbers
        self._undo = Newest[int, Callable[[], None]](UNDOABLE)  # of answers that were sent
        self._undo_last: Callable[[], None] | None = None  # of the answer that was sent last

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        try:
            pid, uid = peer(transport.get_extra_info("socket"))
            with RESERVE.lent():
                self._child = caller(self._app, pid)
            if self._child is None and uid not in (os.geteuid(), 0):
                raise Refused("a process of another user")
            if self._child is not None:
                self._welcome(self._child)
        except Refused:
            transport.close()
        except LimitExceeded as error:
            self._write({"id": None, "error": protocol.error_to_json(error)})
            transport.close()
        else:
            self._serve(asyncio.create_task(self._run()))

    def _welcome(self, child: Subagent) -> None:
        """Raises:
        LimitExceeded: it is here often enough.
        """
        self._guests.enter(child)
        self._intake = Intake(self._transport, self._begin)
        self._lines.most = protocol.MAX_OF_CHILD

    def data_received(self, data: bytes) -> None:
        take = self._begin if self._intake is None else self._intake.take
        try:
            for line in self._lines.whole(data):
                take(line)
        except BadInput as error:
            self._write({"id": None, "error": protocol.error_to_json(error)})
            self._transport.pause_reading()
            self._over.set()

    def _begin(self, line: bytearray) -> asyncio.Task[None]:
        request = asyncio.create_task(self._answer(line))
        self._requests.add(request)
        request.add_done_callback(self._requests.discard)
        return request

    def eof_received(self) -> bool:
        self._over.set()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, ConnectionResetError) and self._undo_last is not None:
            # The kernel's word for a client that went while something for it lay unread: at
            # least the last answer never reached anyone.
            self._undo_last()
        if self._intake is not None and self._child is not None:
            self._guests.leave(self._child)
        self._flowing.set()
        self._over.set()

    def pause_writing(self) -> None:
        self._flowing.clear()

    def resume_writing(self) -> None:
        self._flowing.set()

    async def _run(self) -> None:
        """The client was served until it went, or this was cancelled: the steward ends."""
        try:
            await self._over.wait()
        finally:
            if self._intake is not None:
                self._intake.close()
            said = None if self._over.is_set() else LEFT
            for request in list(self._requests):
                request.cancel(said)
            if self._requests:
                await asyncio.wait(self._requests)
            self._app.service.waiting.held.leave(self)
            self._transport.close()

    async def _answer(self, line: bytearray) -> None:
        number: Any = None
        try:
            message = protocol.decode(line)
            number = message.get("id")
            self._note(number)
            if message.get("v") != protocol.VERSION:
                raise BadInput(
                    f"this steward speaks version {protocol.VERSION}",
                    code="protocol_version",
                    hint="'retinue steward stop' ends it; the next command starts a new one",
                )
            await self._call(number, str(message.get("verb")), Params(message.get("params", {})))
        except RetinueError as error:
            await self._refuse(number, error)
        except ConnectionError:
            pass
        except Exception as error:
            self._app.complain(f"verb failed: {type(error).__name__}: {error}")
            failed = RetinueError(
                f"the steward failed: {type(error).__name__}: {error}",
                code="internal",
                hint="steward.log in the root has more",
            )
            await self._refuse(number, failed)
        finally:
            if isinstance(number, int):
                self._under_way.pop(number, None)

    def _note(self, number: Any) -> None:
        """Whoever sent this number can take its request back."""
        task = asyncio.current_task()
        if isinstance(number, int) and task is not None:
            self._under_way[number] = task

    async def _forget(self, number: Any, params: Params) -> None:
        """A request that its client no longer waits for has ended, or had never been answered."""
        taken_back, leave = params.count("request", 0, LARGEST), params.flag("leave")
        tell = params.flag("tell")
        params.done()
        request = self._under_way.get(taken_back)
        if (undo := self._undo.pop(taken_back, None)) is not None:
            undo()
        elif request is not None:
            request.cancel(LEFT if leave else None)
        if tell:
            if request is not None:
                await asyncio.wait({request})
            await self._send({"id": number, "result": None})

    async def _call(self, number: Any, verb: str, params: Params) -> None:
        if verb == protocol.FORGET:
            await self._forget(number, params)
            return
        params.client = self
        if self._child is not None:
            answer = delegated.call(self._app, self._child, verb, params)
            await self._give(number, answer, params)
            return
        if verb == "steward.stop":
            await self._end(number, params)
            return
        try:
            self._app.database.require_in_place()
        except IntegrityBroken:
            self._stop()  # what it would still say or write, nobody could find again
            raise
        await self._carry_out(number, verb, params)

    async def _carry_out(self, number: Any, verb: str, params: Params) -> None:
        if verb in STREAMS:
            async with aclosing(STREAMS[verb](self._app, params)) as items:
                async for item in items:
                    await self._send({"id": number, "item": item})
            await self._send({"id": number, "result": None})
        elif verb in KNOWN:
            self._app.notes.touch(params.about())
            await self._give(number, KNOWN[verb](self._app, params), params)
        else:
            said, hint = f"unknown verb {verb[:40]!a}", protocol.OTHER_VERSION
            raise BadInput(said, code="unknown_verb", hint=hint)

    async def _give(self, number: Any, answer: Awaitable[Any], params: Params) -> None:
        """The answer is on its way; where it cannot be given, or nobody takes it, it is undone."""
        try:
            result = await answer
            if self._over.is_set():
                raise ConnectionResetError
            if params.if_lost is not None and isinstance(number, int):
                self._undo[number] = params.lost
            await self._send({"id": number, "result": result}, undo=params.lost)
        except (ConnectionError, RetinueError):
            params.lost()
            raise

    async def _end(self, number: Any, params: Params) -> None:
        if params.flag("cancel"):
            for task in self._app.records.tasks(-1, open_only=True):
                why = "steward stopped"
                self._app.service.plans.stop(task.id, by="user", reason=why)
                await self._app.service.tasks.cancel(task.id, by="user", reason=why)
        params.done()
        await self._send({"id": number, "result": {"stopped": True, "pid": os.getpid()}})
        self._stop()

    async def _refuse(self, number: Any, error: RetinueError) -> None:
        """The client knows why; one that has gone need not."""
        with suppress(ConnectionError):
            await self._send({"id": number, "error": protocol.error_to_json(error)})

    async def _send(self, message: dict[str, Any], undo: Callable[[], None] | None = None) -> None:
        """Raises:
        ConnectionResetError: nobody is there to read it.
        """
        self._write(message, undo)
        await self._flowing.wait()
        if self._transport.is_closing():
            raise ConnectionResetError

    def _write(self, message: dict[str, Any], undo: Callable[[], None] | None = None) -> None:
        self._undo_last = undo
        self._transport.write(protocol.encode(message))
