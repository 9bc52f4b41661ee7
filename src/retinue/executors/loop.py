"""As much of an event loop as a team needs that works for itself: tasks, timers, sockets.

asyncio's own knows servers, streams, pipes and threads besides. A child that makes and runs one
copies 0.4 MB more of the process it was cloned from.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import select
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any, TypeVarTuple

Act = Callable[[], object]
Given = TypeVarTuple("Given")
Callback = Callable[[*Given], object]


class Call:
    """Something to be done soon, or at its time."""

    __slots__ = ("act", "at")

    def __init__(self, act: Act, at: float = 0.0) -> None:
        self.act: Act | None = act
        self.at = at

    def cancel(self) -> None:
        self.act = None

    def __lt__(self, other: Call) -> bool:
        return self.at < other.at


class Agenda(asyncio.AbstractEventLoop):
    """What is to be done, and when."""

    def __init__(self) -> None:
        self._soon: deque[Call] = deque()
        self._later: list[Call] = []

    def call_soon(
        self, callback: Callback[*Given], *args: *Given, context: Context | None = None
    ) -> Any:
        act = partial(callback, *args)
        call = Call(act if context is None else partial(context.run, act))
        self._soon.append(call)
        return call

    def call_later(
        self, delay: float, callback: Callback[*Given], *args: *Given, context: Any = None
    ) -> Any:
        return self.call_at(self.time() + delay, callback, *args)

    def call_at(
        self, when: float, callback: Callback[*Given], *args: *Given, context: Any = None
    ) -> Any:
        call = Call(partial(callback, *args), when)
        heapq.heappush(self._later, call)
        return call

    def time(self) -> float:
        return time.monotonic()

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **more: Any) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, **more)

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What nobody else hears is told on the standard error."""
        print(context["message"], file=sys.stderr)
        if fault := context.get("exception"):
            traceback.print_exception(fault)

    def _patience_ms(self) -> int | None:
        """How long nothing is to be done; None: until something happens."""
        while self._later and self._later[0].act is None:
            heapq.heappop(self._later)
        if self._soon:
            return 0
        return int(max(0.0, self._later[0].at - self.time()) * 1000) + 1 if self._later else None

    def _do(self) -> None:
        """All has been done whose time had come. What breaks it breaks the loop."""
        now = self.time()
        while self._later and self._later[0].at <= now:
            self._soon.append(heapq.heappop(self._later))
        for _ in range(len(self._soon)):
            if (act := self._soon.popleft().act) is not None:
                act()


class Loop(Agenda):
    """One waits for each descriptor, at most."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: dict[int, Act] = {}
        self._poll = select.poll()
        self._alarm = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.add_reader(self._alarm, os.eventfd_read, self._alarm)

    def run_until_complete(self, future: Any) -> Any:
        task = self.create_task(future)
        asyncio._set_running_loop(self)
        try:
            while not task.done():
                for descriptor, _ in self._poll.poll(self._patience_ms()):
                    self._soon.append(Call(self._waiting[descriptor]))
                self._do()
        finally:
            asyncio._set_running_loop(None)
        return task.result()

    def close(self) -> None:
        os.close(self._alarm)

    def call_soon_threadsafe(
        self, callback: Callback[*Given], *args: *Given, context: Any = None
    ) -> Any:
        """From a signal, too: a poll does not end with it by itself."""
        call = self.call_soon(callback, *args)
        os.eventfd_write(self._alarm, 1)
        return call

    def add_reader(self, fd: Any, callback: Callback[*Given], *args: *Given) -> None:
        self._watch(fd, select.POLLIN, partial(callback, *args))

    def remove_reader(self, fd: Any) -> bool:
        if self._waiting.pop(fd, None) is None:
            return False
        self._poll.unregister(fd)
        return True

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        try:
            sock.connect(address)
        except BlockingIOError:
            await self._ready(sock, select.POLLOUT)
            if number := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(number, os.strerror(number)) from None

    async def sock_sendall(self, sock: socket.socket, data: Any) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[sock.send(left) :]
            except BlockingIOError:
                await self._ready(sock, select.POLLOUT)

    async def sock_recv(self, sock: socket.socket, nbytes: int) -> bytes:
        while True:
            try:
                return sock.recv(nbytes)
            except BlockingIOError:
                await self._ready(sock, select.POLLIN)

    async def _ready(self, sock: socket.socket, event: int) -> None:
        ready, descriptor = self.create_future(), sock.fileno()
        self._watch(descriptor, event, partial(_settle, ready))
        try:
            await ready
        finally:
            self.remove_reader(descriptor)

    def _watch(self, descriptor: int, event: int, act: Act) -> None:
        self._waiting[descriptor] = act
        self._poll.register(descriptor, event)


def small_loop() -> asyncio.AbstractEventLoop:
    """What it does not do it refuses, with NotImplementedError."""
    return Loop()  # type: ignore[abstract]


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
