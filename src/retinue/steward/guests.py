"""Children at the steward's socket: what they can ask of it at once has an end."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable

from retinue.domain.errors import LimitExceeded
from retinue.domain.subagent import Subagent

CONNECTIONS = 64  # of one child
AT_ONCE = 16  # requests of one connection


class Guests:
    """How many connections each child has: each is a descriptor that others may need."""

    def __init__(self) -> None:
        self._connections: Counter[tuple[str, str]] = Counter()

    def enter(self, child: Subagent) -> None:
        """Raises:
        LimitExceeded: it has enough.
        """
        if self._connections[child.task, child.id] >= CONNECTIONS:
            raise LimitExceeded(
                f"{child.id} has {CONNECTIONS} connections to the steward already",
                code="too_many_connections",
                hint="close one, or send requests over one that is open",
            )
        self._connections[child.task, child.id] += 1

    def leave(self, child: Subagent) -> None:
        self._connections[child.task, child.id] -= 1
        if not self._connections[child.task, child.id]:
            del self._connections[child.task, child.id]


class Intake:
    """Requests of one child, begun one in each turn of the loop: others have theirs between."""

    def __init__(
        self, transport: asyncio.Transport, begin: Callable[[bytearray], asyncio.Task[None]]
    ) -> None:
        self._transport = transport
        self._begin = begin
        self._unbegun: deque[bytearray] = deque()
        self._under_way = 0
        self._next: asyncio.Handle | None = None
        self._closed = False

    def take(self, line: bytearray) -> None:
        """It is begun when its turn comes; until then no more is read."""
        self._unbegun.append(line)
        self._look()

    def close(self) -> None:
        """What has not begun never will, and nothing more is read."""
        self._closed = True
        self._unbegun.clear()

    def _look(self) -> None:
        if self._unbegun and self._next is None and self._under_way < AT_ONCE:
            self._under_way += 1
            self._begin(self._unbegun.popleft()).add_done_callback(self._over)
            self._next = asyncio.get_running_loop().call_soon(self._turn)
        if self._unbegun or self._closed:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _turn(self) -> None:
        self._next = None
        self._look()

    def _over(self, _: asyncio.Task[None]) -> None:
        self._under_way -= 1
        self._look()
