"""Delegate work to subagents you can trust."""

from __future__ import annotations

from retinue.version import VERSION as __version__

# Type checkers take this as true. Importing `typing` would slow down the start of children.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from retinue.api import (
        Batch,
        Retinue,
        Settled,
        Spawned,
        SubagentStatus,
        Task,
        connect,
        open,
        run_sync,
    )
    from retinue.core.brief import Brief
    from retinue.core.errors import (
        BadInput,
        IllegalTransition,
        IntegrityBroken,
        IsolationUnavailable,
        LaunchFailed,
        LimitExceeded,
        NotFound,
        NothingToWaitFor,
        Refused,
        RetinueError,
        StewardUnavailable,
        StorageFailed,
        WaitTimedOut,
    )
    from retinue.core.result import Result, Status, TokenUsage

__all__ = [
    "BadInput",
    "Batch",
    "Brief",
    "IllegalTransition",
    "IntegrityBroken",
    "IsolationUnavailable",
    "LaunchFailed",
    "LimitExceeded",
    "NotFound",
    "NothingToWaitFor",
    "Refused",
    "Result",
    "Retinue",
    "RetinueError",
    "Settled",
    "Spawned",
    "Status",
    "StewardUnavailable",
    "StorageFailed",
    "SubagentStatus",
    "Task",
    "TokenUsage",
    "WaitTimedOut",
    "__version__",
    "connect",
    "open",
    "run_sync",
]

_HOMES = {
    "retinue.core.brief": ("Brief",),
    "retinue.core.result": ("Result", "Status", "TokenUsage"),
    "retinue.api": (
        *("Batch", "Retinue", "Settled", "Spawned", "SubagentStatus", "Task"),
        *("connect", "open", "run_sync"),
    ),
}


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Import a public name on first use, since a shell command needs none of them."""
    if name not in __all__:
        raise AttributeError(f"module 'retinue' has no attribute {name!r}")
    from importlib import import_module

    homes = (home for home, names in _HOMES.items() if name in names)
    return getattr(import_module(next(homes, "retinue.core.errors")), name)
