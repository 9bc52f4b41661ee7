"""Connections under limits: whoever is slow, or one too many, is let go."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

TAKING_SECONDS = 20.0  # for what was sent to be taken, before more is sent
MOST = 256


class Connection(H11Protocol):
    """One client's connection. One that does not ask, or does not listen, ends."""

    asking_seconds = 10.0  # for a whole request, from its first byte or its connection on
    asking: ClassVar[dict[Connection, None]] = {}  # those whose request is not whole, oldest first

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._asks: asyncio.TimerHandle | None = None
        self._takes: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_request()
        if len(self.connections) > MOST:
            next(iter(self.asking)).give_way()

    def give_way(self) -> None:
        """It was asking longest, and often it never meant to ask: another takes its place."""
        self._stop_waiting()
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._await_request()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._cancel_takes()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._cancel_takes()
        self._takes = self.loop.call_later(TAKING_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        self._cancel_takes()
        super().resume_writing()

    def _await_request(self) -> None:
        if self._asks is None:
            self.asking[self] = None
            self._asks = self.loop.call_later(self.asking_seconds, self.transport.abort)

    def _stop_waiting(self) -> None:
        self.asking.pop(self, None)
        if self._asks is not None:
            self._asks.cancel()
            self._asks = None

    def _cancel_takes(self) -> None:
        if self._takes is not None:
            self._takes.cancel()
            self._takes = None
