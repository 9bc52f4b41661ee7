"""Boundary of a child: isolation, network and resource limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from retinue.core.errors import BadInput, IsolationUnavailable

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

    def narrow(self, wanted: Mapping[str, float]) -> Limits:
        """Return these limits with the wanted ones in their place.

        Raises:
            BadInput: one is unknown, no positive number, or above the limit it replaces.
        """
        known = {each.name: getattr(self, each.name) for each in fields(self)}
        for name, value in wanted.items():
            if name not in known:
                raise BadInput(
                    f"unknown limit {name[:40]!a}",
                    code="unknown_limit",
                    hint=f"known: {', '.join(known)}",
                )
            if not 0 < value < float("inf") or (name != "cpus" and value != int(value)):
                kind = "number" if name == "cpus" else "whole number"
                raise BadInput(
                    f"limit {name}: {value!r} is not a {kind} above 0", code="invalid_limit"
                )
            # A limit of 0 CPUs means all of them.
            if value > (known[name] or float("inf")):
                raise BadInput(
                    f"limit {name}: {value:g} is above the configured {known[name]:g}",
                    code="limit_too_wide",
                    hint="a brief only lowers limits; raise subagent_limits in the configuration",
                )
        whole = {name: value if name == "cpus" else int(value) for name, value in wanted.items()}
        return replace(self, **whole)  # type: ignore[arg-type]


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
