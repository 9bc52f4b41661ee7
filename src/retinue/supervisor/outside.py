"""What the supervisor is given to work with."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from retinue.domain.access import ModelAccess, Spent
from retinue.domain.ids import TaskId
from retinue.domain.policy import TaskConfig
from retinue.domain.subagent import Subagent
from retinue.ports import Gateway, Records, Runtime, Stop, Workspace
from retinue.supervisor.joining import Checking, Joining, NoJoining
from retinue.supervisor.journal import Journal

LAUNCHES = 32  # under way at once: each has to be up in its time, however many are wanted


def _no_failpoint(name: str) -> None:
    """Nothing fails here on purpose."""


class NoGateway:
    """Implements `Gateway` where there are no models."""

    async def access(self, subagent: Subagent, attempt: int) -> ModelAccess:
        return ModelAccess()

    async def admit(
        self, subagent: Subagent, attempt: int, listener: socket.socket | None, stop: Stop
    ) -> None:
        """Nobody asks."""

    async def dismiss(self, subagent: Subagent, attempt: int) -> Spent:
        return Spent()


class Edits(Protocol):
    """What people save as task.yaml."""

    look: Callable[[TaskId], bool]  # asked about a task that was saved; whether to go on watching

    def watch(self, task: TaskId) -> bool:
        """The task is watched; whether only from now on, so that it may have been saved before."""


class NoEdits:
    """Implements `Edits` where nobody saves anything."""

    def __init__(self) -> None:
        self.look: Callable[[TaskId], bool] = lambda task: False

    def watch(self, task: TaskId) -> bool:
        return False


@dataclass(frozen=True, kw_only=True)
class Outside:
    journal: Journal
    records: Records
    runtime: Runtime
    workspaces: Workspace
    policy: Callable[[TaskId], TaskConfig]
    monotonic_ms: Callable[[], int]
    gateway: Gateway = field(default_factory=NoGateway)
    joining: Joining = field(default_factory=NoJoining)
    checking: Checking = field(default_factory=NoJoining)
    launches: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LAUNCHES))
    at_leisure: asyncio.Event = field(default_factory=asyncio.Event)  # nobody waits for a start
    edits: Edits = field(default_factory=NoEdits)
    expect_team: Callable[[], None] = lambda: None  # one is about to be launched
    failpoint: Callable[[str], None] = _no_failpoint
    complain: Callable[[str], None] = print
