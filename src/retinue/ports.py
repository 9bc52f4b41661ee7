"""What the supervisor needs from the outside, as Protocols."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from retinue.domain.ending import Ending
from retinue.domain.ids import SubagentId, TaskId


@dataclass(frozen=True, kw_only=True)
class LaunchOrder:
    """All that a runtime needs to start one attempt."""

    task: TaskId
    subagent: SubagentId
    attempt: int
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    workspace: Path
    runtime_folder: Path
    timeout_ms: int
    graces_ms: tuple[int, int]
    output_limit_bytes: int


@dataclass(frozen=True, kw_only=True)
class ProcessIdentity:
    """A process that cannot be mistaken for a later one with the same number."""

    boot_id: str
    pid: int
    start_ticks: int


class Child(Protocol):
    """One attempt's process, held at its gate until it is released."""

    @property
    def identity(self) -> ProcessIdentity: ...

    async def release(self) -> None:
        """The command is executing.

        Raises:
            LaunchFailed: it could not be executed; the process is ending.
        """

    def stop(self) -> None:
        """The stop ladder has begun: SIGINT, grace, SIGTERM, grace, SIGKILL. Idempotent."""

    def kill(self) -> None:
        """Everything the child started is being killed at once. Idempotent."""

    async def ended(self) -> Ending:
        """No process of the child is left; how it ended."""


class Runtime(Protocol):
    def unavailable(self) -> str | None:
        """Why this runtime cannot be used here, or None."""

    async def launch(self, order: LaunchOrder) -> Child:
        """A process exists for this attempt; it runs nothing of the task until released.

        Raises:
            LaunchFailed: no process exists.
        """

    def adopt(self, identity: ProcessIdentity, runtime_folder: Path) -> Child | None:
        """The living process of an earlier supervisor, or None when it is gone."""
