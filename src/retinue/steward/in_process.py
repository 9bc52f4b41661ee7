"""Root sessions of Python programs, and the transport for a root in the same process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from retinue.client.async_client import drop_unset
from retinue.core.errors import PYTHON, BadInput, Refused, RetinueError
from retinue.formats import steward_protocol
from retinue.steward.app import App
from retinue.steward.verbs.params import Params
from retinue.steward.verbs.verb_table import KNOWN, STREAMS, require_trusted


class VerbTransport(Protocol):
    """Carrier of verbs to the steward and of answers back."""

    async def call(self, verb: str, **params: Any) -> Any: ...

    def stream(self, verb: str, **params: Any) -> AsyncGenerator[Any, None]: ...


@dataclass
class PendingCall:
    """A call under way in a RootSession."""

    cancel_count: int  # `cancelling()` of its task when the call began
    by_session: bool = False  # the end of the session cancelled it


class RootSession:
    """Session of a program with a root. When it ends, calls under way are cancelled.

    Raises, with every verb:
        Refused: the session is over, or the call comes from another event loop.
    """

    def __init__(self, carrier: VerbTransport) -> None:
        self._carrier = carrier
        self._loop = asyncio.get_running_loop()
        self._pending: dict[asyncio.Task[Any], PendingCall] = {}
        # Set by `leave`; done when no call is left.
        self._all_ended: asyncio.Future[None] | None = None

    async def call(self, verb: str, **params: Any) -> Any:
        with self._track_call(), hints_for_python():
            return await self._carrier.call(verb, **params)

    async def stream(self, verb: str, **params: Any) -> AsyncGenerator[Any, None]:
        async with aclosing(self._carrier.stream(verb, **params)) as items:
            while True:
                with self._track_call(), hints_for_python():
                    try:
                        item = await anext(items)
                    except StopAsyncIteration:
                        return
                yield item

    async def leave(self) -> None:
        """End the session: cancel all calls under way and wait until they are over."""
        self._all_ended = self._loop.create_future()
        for task, pending in self._pending.items():
            # Skip tasks that are being cancelled already.
            if task.cancelling() <= pending.cancel_count:
                pending.by_session = task.cancel()
        if self._pending:
            await self._all_ended

    @contextmanager
    def _track_call(self) -> Iterator[None]:
        """Track a call of the current task.

        The end of the session cancels the call inside, which revokes its request. Outside, the
        caller sees an error instead, because it did not cancel anything.
        """
        self._require_open()
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        pending = self._pending[task] = PendingCall(cancel_count=task.cancelling())
        try:
            yield
        except asyncio.CancelledError:
            if pending.by_session and task.uncancel() <= pending.cancel_count:
                raise _make_left_error() from None
            raise
        finally:
            del self._pending[task]
            if self._all_ended is not None and not self._pending and not self._all_ended.done():
                self._all_ended.set_result(None)

    def _require_open(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise Refused(
                "this root was opened in another event loop",
                code="other_loop",
                hint="call it in that loop, with asyncio.run_coroutine_threadsafe()",
            )
        if self._all_ended is not None:
            raise _make_left_error()


@contextmanager
def hints_for_python() -> Iterator[None]:
    """Raise errors with hints for programs: the next step is a call, not a command."""
    try:
        yield
    except RetinueError as error:
        for_python = error.read_by(PYTHON)
        if for_python is error:
            raise
        raise for_python from None


def _make_left_error() -> Refused:
    return Refused(
        "the 'async with' block of this root has ended",
        code="root_left",
        hint="call inside of the block; spawned subagents go on, those that run() awaited were "
        "cancelled",
    )


class InProcessTransport:
    """Transport to a root that is open in this process."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def call(self, verb: str, **params: Any) -> Any:
        known = KNOWN.get(verb)
        if known is None:
            hint = steward_protocol.OTHER_VERSION_HINT
            raise BadInput(f"unknown verb {verb!a}", code="unknown_verb", hint=hint)
        require_trusted(self._app, verb)
        return await known(
            self._app, Params(steward_protocol.to_received_params(verb, drop_unset(params)))
        )

    def stream(self, verb: str, **params: Any) -> AsyncGenerator[Any, None]:
        require_trusted(self._app, verb)
        return STREAMS[verb](
            self._app, Params(steward_protocol.to_received_params(verb, drop_unset(params)))
        )
