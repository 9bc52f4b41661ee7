"""Boundary of a child: isolation, network and resource limits."""

from __future__ import annotations

from dataclasses import dataclass, field

from retinue.core.errors import IsolationUnavailable

ISOLATED, INHERITED = "isolated", "inherited"
SHARED, SPARSE = "shared", "sparse"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Resource limits of one child."""

    memory_mb: int = 4096
    processes: int = 512
    file_mb: int = 4096
    open_files: int = 4096
    cpus: float = 0.0  # 0: all


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """The boundary in a contract; it is in force before the child runs its command."""

    mode: str = ISOLATED
    network: str = "models"  # or off, on
    workspaces: str = SHARED  # or sparse, whole; shared falls back to whole without kernel support
    limits: Limits = field(default_factory=Limits)
    launch_prefix: tuple[str, ...] = ()
    warning: str = ""  # added to every result if the boundary is weaker than configured


def resolve_mode(
    wanted: str, fallback: str | None, missing: str | None, *, contained_codex: bool = False
) -> tuple[str, str]:
    """Return the mode to use and a warning if it is weaker than wanted.

    Args:
        missing: why isolation is unavailable here, or None.

    Raises:
        IsolationUnavailable: isolation is unavailable and no fallback is allowed.
    """
    if wanted == INHERITED or missing is None:
        return wanted, ""
    # A Codex parent inside a container cannot isolate its children: they inherit its boundary.
    if fallback == INHERITED or contained_codex:
        return INHERITED, f"not isolated: {missing}"
    raise IsolationUnavailable(
        f"children cannot be isolated here: {missing}",
        hint="set subagent_host_launch_prefix to a launcher that can isolate, or allow less with "
        "subagent_runtime_fallback_mode: inherited",
    )
