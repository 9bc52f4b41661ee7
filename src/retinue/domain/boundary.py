"""Where a child runs, what it may reach and how much it may take."""

from __future__ import annotations

from dataclasses import dataclass, field

from retinue.domain.errors import IsolationUnavailable

ISOLATED, INHERITED = "isolated", "inherited"
SHARED, SPARSE = "shared", "sparse"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one child may take of the machine."""

    memory_mb: int = 4096
    processes: int = 512
    file_mb: int = 4096
    open_files: int = 4096


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """A part of the contract: settled before the child exists, in force before it runs."""

    mode: str = ISOLATED
    network: str = "models"  # or off, on
    workspaces: str = SHARED  # as far as the kernel can, else whole, or sparse; or always whole
    limits: Limits = field(default_factory=Limits)
    launch_prefix: tuple[str, ...] = ()
    warning: str = ""  # in every result, when it is less than was asked for


def resolve_mode(
    wanted: str, fallback: str | None, missing: str | None, *, contained_codex: bool = False
) -> tuple[str, str]:
    """The mode in force, and the warning that goes with it.

    A Codex parent inside a container cannot give its children a boundary of
    their own, and is understood to ask for its own one.

    Args:
        missing: why isolation is not to be had here, or None.

    Raises:
        IsolationUnavailable: it is missing, and nobody allowed less.
    """
    if wanted == INHERITED or missing is None:
        return wanted, ""
    if fallback == INHERITED or contained_codex:
        return INHERITED, f"not isolated: {missing}"
    raise IsolationUnavailable(
        f"isolated children are not to be had here: {missing}",
        hint="set subagent_host_launch_prefix to a launcher that can, or allow less with "
        "subagent_runtime_fallback_mode: inherited",
    )
