"""What a task's configuration decides for every subagent it will ever have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

from retinue.domain.boundary import Limits
from retinue.domain.budget import Budget
from retinue.domain.errors import BadInput
from retinue.domain.staffing import ModelBackend, Spawner, Staff

MAX_SECONDS = 31_536_000  # a year
DURATION = f"a number of seconds above 0, at most {MAX_SECONDS}"

WAIT = f"{DURATION}, or 0 to ask without waiting"


def is_duration(value: object) -> TypeGuard[float]:
    """Whether a value is a usable number of seconds; truth values and texts are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 < value <= MAX_SECONDS  # which NaN and infinity are not


def require_duration(value: object, what: str, words: str = DURATION) -> float:
    """The seconds themselves, once they are known to be usable.

    Raises:
        BadInput: not a finite number above zero, or more than a year.
    """
    if not is_duration(value):
        raise BadInput(
            f"{what} must be {words}, not {repr(value)[:40]!a}",
            code="invalid_timeout",
            hint="fractions such as 0.5 are accepted",
        )
    return float(value)


def require_wait(value: object, what: str) -> float:
    """The same of a wait, which may also be none at all.

    Raises:
        BadInput: neither that nor a usable number of seconds.
    """
    none = value == 0 and not isinstance(value, bool)
    return 0.0 if none else require_duration(value, what, WAIT)


def milliseconds(seconds: float) -> int:
    """The same time in whole milliseconds, never none at all."""
    return max(1, round(seconds * 1000))


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What becomes of the requests that pass to models."""

    mode: str = "live"  # or record, replay
    folder: str = ""  # of what was recorded; empty for the task's own


@dataclass(frozen=True, kw_only=True)
class NewConfig:
    """What a task is created with: a configuration document, and two limits that go before it."""

    document: Mapping[str, object] = field(default_factory=dict)
    max_concurrent: int | None = None
    timeout_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """The terms that bind every contract of a task, and the limits of its calls."""

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
    codex: bool = False  # the team that spawns is Codex, and nobody else
    background_enabled: bool = True
    context_roots: tuple[str, ...] = ()
    network: str = "models"  # or off, on
    workspaces: str = "shared"  # or sparse, whole
    limits: Limits = field(default_factory=Limits)
    budget: Budget = field(default_factory=Budget)  # of each subagent
    grace_turn_ms: int = 5000
    backends: tuple[ModelBackend, ...] = ()
    traffic: Traffic = field(default_factory=Traffic)
    staff: Staff = field(default_factory=Staff)
    fallback: tuple[ModelBackend, ...] = ()  # who answers where nobody was named
    own_round_limits_ms: tuple[int, int, int] = (0, 0, 0)  # of the team that spawns; as below
    round_limits_ms: tuple[int, int, int] = (0, 0, 0)  # first, later, grace after each
    subagents_enabled: bool = False  # the team that runs may delegate
    planning_enabled: bool = False  # and have plans carried out
    subagent_types: tuple[str, ...] | None = None  # the active ones; None for the usual

    @property
    def reachable(self) -> tuple[ModelBackend, ...]:
        """Every way to a model that a team of this task may have."""
        return self.backends or self.fallback

    @property
    def crew(self) -> Staff:
        """Who may be sent, also where nobody was named."""
        named = self.staff.spawners or self.staff.pool
        usual = (Spawner(id=each.name, backend=each) for each in self.fallback)
        return self.staff if named else Staff(spawners=tuple(usual))

    def attempt_timeout_ms(self, asked_seconds: float | None) -> int:
        """How long one attempt may take: what was asked, within what is allowed."""
        asked = self.default_timeout_ms if asked_seconds is None else milliseconds(asked_seconds)
        return min(max(asked, self.min_timeout_ms), self.max_timeout_ms)
