"""Task configuration: the terms of all subagents of a task, their boundary, checks of durations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TypeGuard

from retinue.core.budget import Budget
from retinue.core.errors import BadInput, IsolationUnavailable
from retinue.core.placement import Placement
from retinue.core.staffing import ModelBackend, Spawner, Staff

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


MAX_SECONDS = 31_536_000  # a year
DURATION = f"a number of seconds above 0, at most {MAX_SECONDS}"

WAIT = f"{DURATION}, or 0 to ask without waiting"


def is_duration(value: object) -> TypeGuard[float]:
    """Return whether a value is a valid number of seconds; bool and str are not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    # The comparison is also false for NaN and infinity.
    return 0 < value <= MAX_SECONDS


def require_duration(value: object, what: str, words: str = DURATION) -> float:
    """Return the value as a float.

    Raises:
        BadInput: it is not a finite number above zero, or more than a year.
    """
    if not is_duration(value):
        raise BadInput(
            f"{what} must be {words}, not {repr(value)[:40]!a}",
            code="invalid_timeout",
            hint="fractions such as 0.5 are accepted",
        )
    return float(value)


def require_wait(value: object, what: str) -> float:
    """Return the value as a float; unlike a duration, a wait may be 0.

    Raises:
        BadInput: it is neither 0 nor a valid number of seconds.
    """
    none = value == 0 and not isinstance(value, bool)
    return 0.0 if none else require_duration(value, what, WAIT)


def to_milliseconds(seconds: float) -> int:
    """Convert to whole milliseconds, at least 1: elsewhere 0 means no limit."""
    return max(1, round(seconds * 1000))


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Whether model requests are sent, recorded or replayed."""

    mode: str = "live"  # or record, replay
    folder: str = ""  # of the recordings; empty: the task's own


@dataclass(frozen=True, kw_only=True)
class ModelTerms:
    """Provider features and further models that subagents with network `models` may use."""

    allow_hosted: tuple[str, ...] = ()  # names of features that run at the provider
    models: tuple[str, ...] = ()  # model names; * matches any text


@dataclass(frozen=True, kw_only=True)
class NewConfig:
    """Configuration of a new task: a document, and two limits that override it."""

    document: Mapping[str, object] = field(default_factory=dict)
    max_concurrent: int | None = None
    timeout_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """Terms of all contracts of a task, and limits of its calls."""

    default_timeout_ms: int = 300_000
    min_timeout_ms: int = 60_000
    max_timeout_ms: int = 600_000
    max_concurrent: int = 3
    wait_timeout_seconds: float = 3600.0
    admission: str = "reject"  # or queue
    graces_ms: tuple[int, int] = (3000, 2000)  # after SIGINT, after SIGTERM
    output_limit_bytes: int = 16 * 1024 * 1024  # of each stream
    runtime_mode: str = "isolated"  # or inherited
    runtime_fallback: str | None = None  # or inherited
    launch_prefix: tuple[str, ...] = ()
    codex: bool = False  # every agent of the spawning team is Codex
    background_enabled: bool = True
    context_roots: tuple[str, ...] = ()
    context_paths: tuple[str, ...] = ()  # lent to every subagent; relative to the project
    answer_characters: int = 8000  # of one answer in one tool result
    network: str = "models"  # or off, on
    workspaces: str = "shared"  # or sparse, whole
    limits: Limits = field(default_factory=Limits)
    budget: Budget = field(default_factory=Budget)  # of each subagent
    grace_turn_ms: int = 5000
    backends: tuple[ModelBackend, ...] = ()
    traffic: Traffic = field(default_factory=Traffic)
    model_terms: ModelTerms = field(default_factory=ModelTerms)
    staff: Staff = field(default_factory=Staff)
    fallback: tuple[ModelBackend, ...] = ()  # used if no backend is configured
    providers: tuple[ModelBackend, ...] = ()  # that only coding agents use
    keyed: tuple[ModelBackend, ...] = ()  # providers whose keys are in the environment
    own_round_limits_ms: tuple[int, int, int] = (0, 0, 0)  # of the spawning team; as below
    round_limits_ms: tuple[int, int, int] = (0, 0, 0)  # first round, later rounds, grace
    subagents_enabled: bool = False  # the root team may delegate
    planning_enabled: bool = False  # the root team may submit plans
    subagent_types: tuple[str, ...] | None = None  # the active ones; None: the default set
    placement: Placement | None = None  # the nodes that run subagents; None: this machine does
    retries_on_node_loss: int = 1
    checkpoint_ms: int = 0  # how often nodes copy workspaces to the hub; 0: never

    @property
    def reachable(self) -> tuple[ModelBackend, ...]:
        """Backends that teams of this task may use."""
        return self.backends or self.fallback

    @property
    def agent_providers(self) -> tuple[ModelBackend, ...]:
        """Backends that coding agents may use: the configured ones, then those with a key."""
        named = (*self.backends, *self.providers)
        taken = {each.name for each in named}
        return (*named, *(each for each in self.keyed if each.name not in taken))

    @property
    def crew(self) -> Staff:
        """The configured staff; the fallback backends if there is none."""
        named = self.staff.spawners or self.staff.pool
        default = (Spawner(id=each.name, backend=each) for each in self.fallback)
        return self.staff if named else Staff(spawners=tuple(default))

    def clamp_timeout_ms(self, asked_seconds: float | None) -> int:
        """Return the timeout of one attempt: the requested one within the configured range."""
        asked = self.default_timeout_ms if asked_seconds is None else to_milliseconds(asked_seconds)
        return min(max(asked, self.min_timeout_ms), self.max_timeout_ms)
