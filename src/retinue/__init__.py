"""Delegate work to subagents you can trust."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retinue.version import VERSION as __version__

if TYPE_CHECKING:
    from retinue.api import Batch, Retinue, Settled, Spawned, Task, connect, open
    from retinue.domain.brief import Brief
    from retinue.domain.errors import RetinueError
    from retinue.domain.result import Result

__all__ = [
    "Batch",
    "Brief",
    "Result",
    "Retinue",
    "RetinueError",
    "Settled",
    "Spawned",
    "Task",
    "__version__",
    "connect",
    "open",
]

_HOMES = {
    "Brief": "retinue.domain.brief",
    "Result": "retinue.domain.result",
    "RetinueError": "retinue.domain.errors",
}


def __getattr__(name: str) -> Any:
    """Public names are loaded when they are first used: a shell command needs none of them."""
    if name not in __all__:
        raise AttributeError(f"module 'retinue' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES.get(name, "retinue.api")), name)
