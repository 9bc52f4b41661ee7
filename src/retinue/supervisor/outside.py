"""What the supervisor is given to work with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from retinue.domain.ids import TaskId
from retinue.domain.policy import TaskConfig
from retinue.domain.subagent import Attempt, Subagent
from retinue.ports import Gateway, Records, Runtime, Workspace
from retinue.supervisor.joining import Checking, Joining
from retinue.supervisor.journal import Journal

LAUNCHES = 32  # under way at once: each has to be up in its time, however many are wanted


class Edits(Protocol):
    """What people save as task.yaml."""

    look: Callable[[TaskId], bool]  # asked about a task that was saved; whether to go on watching

    def watch(self, task: TaskId) -> bool:
        """The task is watched; whether only from now on, so that it may have been saved before."""


@dataclass(frozen=True, kw_only=True)
class Outside:
    journal: Journal
    records: Records
    runtime: Runtime
    workspaces: Workspace
    policy: Callable[[TaskId], TaskConfig]
    monotonic_ms: Callable[[], int]
    gateway: Gateway
    edits: Edits
    expect_team: Callable[[], None]  # one is about to be launched
    failpoint: Callable[[str], None]
    complain: Callable[[str], None]
    joining: Joining
    checking: Checking
    launches: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LAUNCHES))
    at_leisure: asyncio.Event = field(default_factory=asyncio.Event)  # nobody waits for a start

    def attempts(self, subagent: Subagent) -> list[Attempt]:
        """Its attempts, whose results name the logs where they are."""
        place = partial(self.workspaces.runtime_folder_of, subagent)
        return [a.logged_in(str(place(a.number))) for a in self.records.attempts(subagent)]
