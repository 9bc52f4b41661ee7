"""Delegate work to subagents you can trust."""

from __future__ import annotations

from retinue.version import VERSION as __version__

TYPE_CHECKING = False  # as a checker reads it, it is true; typing itself is more than a child needs

if TYPE_CHECKING:
    from typing import Any

    from retinue.api import Batch, Retinue, Settled, Spawned, Task, connect, open
    from retinue.domain.brief import Brief
    from retinue.domain.errors import (
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
    from retinue.domain.recovery import TokenUsage
    from retinue.domain.result import Result, Status

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
    "Task",
    "TokenUsage",
    "WaitTimedOut",
    "__version__",
    "connect",
    "open",
]

_HOMES = {
    "retinue.domain.brief": ("Brief",),
    "retinue.domain.recovery": ("TokenUsage",),
    "retinue.domain.result": ("Result", "Status"),
    "retinue.api": ("Batch", "Retinue", "Settled", "Spawned", "Task", "connect", "open"),
}


def __getattr__(name: str) -> Any:
    """Public names are loaded when they are first used: a shell command needs none of them."""
    if name not in __all__:
        raise AttributeError(f"module 'retinue' has no attribute {name!r}")
    from importlib import import_module

    homes = (home for home, names in _HOMES.items() if name in names)
    return getattr(import_module(next(homes, "retinue.domain.errors")), name)
