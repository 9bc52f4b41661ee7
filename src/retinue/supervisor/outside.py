"""What the supervisor is given to work with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from retinue.domain.ids import TaskId
from retinue.domain.policy import TaskConfig
from retinue.ports import Records, Runtime, Workspace
from retinue.supervisor.journal import Journal


def _no_failpoint(name: str) -> None:
    """Nothing fails here on purpose."""


@dataclass(frozen=True, kw_only=True)
class Outside:
    journal: Journal
    records: Records
    runtime: Runtime
    workspaces: Workspace
    policy: Callable[[TaskId], TaskConfig]
    monotonic_ms: Callable[[], int]
    failpoint: Callable[[str], None] = _no_failpoint
    complain: Callable[[str], None] = print
