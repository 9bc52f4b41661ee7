"""Ports of the supervisor: joining, checks, watched edits, and the adapters it uses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from retinue.core.ids import TaskId
from retinue.core.join_result import Change, JoinFailed, JoinOutcome, Merged
from retinue.core.policy import TaskConfig
from retinue.core.result import Result
from retinue.core.subagent import Attempt, Subagent
from retinue.ports import Gateway, PreparedWorkspace, ProcessIdentity, Records, Runtime, Workspace
from retinue.steward.journal import Journal


class JoinBackend(Protocol):
    """Layout of workspaces and the steps of a join.

    Every step is repeatable: an interrupted join starts again from its first step.
    """

    async def lay_out(self, subagent: Subagent) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
        """Fill the workspace with what the work starts from.

        Return paths that are lent to the child for it, and the layers below the workspace,
        uppermost first.

        Raises:
            LaunchFailed: the workspace could not be laid out.
        """

    async def make_whole(self, subagent: Subagent) -> None:
        """Make the workspace complete for readers outside of the child's mount namespace.

        Raises:
            RetinueError: it could not be completed; nothing is lost.
        """

    async def find_merged(self, subagent: Subagent) -> JoinOutcome | None:
        """Return the outcome of an earlier merge of this output, if there was one."""

    async def take_in(self, subagent: Subagent) -> Change:
        """Return the subagent's changes as a commit in the task's own repository.

        Raises:
            JoinFailed: policy forbids some of its files.
        """

    async def merge(self, subagent: Subagent, change: Change) -> Merged:
        """Merge the change with what was joined before, without moving a branch.

        Raises:
            JoinFailed: they conflict.
        """

    async def commit(self, subagent: Subagent, merged: Merged) -> str: ...

    async def move(self, subagent: Subagent, merged: Merged, commit: str) -> JoinOutcome | None:
        """Move the branch to the commit; return None if it was moved since the merge.

        Raises:
            JoinFailed: moving it would lose work.
        """

    async def copy(self, subagent: Subagent) -> JoinOutcome:
        """Copy the output to its destination.

        Raises:
            JoinFailed: policy forbids some files, or the destination is occupied.
        """

    async def keep(self, subagent: Subagent, failure: JoinFailed) -> Mapping[str, object]:
        """Keep output that was not joined; return where it is."""

    def publish(self, subagent: Subagent, result: Result) -> None:
        """Write the result into the subagent's folder."""


class CheckBackend(Protocol):
    """Folders in which commands check output before it is joined."""

    async def check_out(self, subagent: Subagent, merged: Merged | None) -> PreparedWorkspace:
        """Return a folder with the merged tree, or the subagent's workspace if None."""

    def note(self, prepared: PreparedWorkspace, identity: ProcessIdentity) -> None: ...

    def find_interrupted(self, subagent: Subagent) -> tuple[ProcessIdentity, Path] | None:
        """Return the process of a check that an earlier steward started."""

    async def discard(self, prepared: PreparedWorkspace) -> None:
        """Remove a tree that was checked out for the check; keep the command's output."""

    def read_message(self, prepared: PreparedWorkspace) -> str:
        """Return the end of what a check printed, for a message."""

    def read_error_output(self, prepared: PreparedWorkspace) -> str:
        """Return more of what a check printed, each stream below its name."""


# Concurrent launches. Each child must be up within a time limit, however many are wanted.
LAUNCHES = 32


class EditWatcher(Protocol):
    """Watch on edits of task.yaml."""

    look: Callable[[TaskId], bool]  # called after an edit; returns whether to go on watching

    def watch(self, task: TaskId) -> bool:
        """Watch the task; return whether the watch is new, so that an edit may have been missed."""


@dataclass(frozen=True, kw_only=True)
class SupervisorPorts:
    """Adapters of the supervisor and of its parts."""

    journal: Journal
    records: Records
    runtime: Runtime
    workspaces: Workspace
    policy: Callable[[TaskId], TaskConfig]
    monotonic_ms: Callable[[], int]
    gateway: Gateway
    edits: EditWatcher
    expect_team: Callable[[], None]  # called before a team is launched
    failpoint: Callable[[str], None]
    complain: Callable[[str], None]
    joining: JoinBackend
    checking: CheckBackend
    launches: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LAUNCHES))
    at_leisure: asyncio.Event = field(default_factory=asyncio.Event)  # start-up is over

    def list_attempts(self, subagent: Subagent) -> list[Attempt]:
        """Return the attempts of a subagent, with the paths of their logs."""
        place = partial(self.workspaces.find_runtime_folder, subagent)
        return [a.with_log_path(str(place(a.number))) for a in self.records.list_attempts(subagent)]
