"""What the configuration allows, as far as the tools' descriptions speak of it."""

from __future__ import annotations

from dataclasses import dataclass

from retinue.domain.policy import TaskConfig
from retinue.domain.subagent_type import Catalogue, SubagentType

MAX_QUEUED = 1000


@dataclass(frozen=True, kw_only=True)
class Terms:
    enabled: bool = True
    background: bool = True
    most: int = 3  # tasks in one call
    default_seconds: float = 300.0
    least_seconds: float = 60.0
    most_seconds: float = 600.0
    types: tuple[SubagentType, ...] = ()  # those that a parent is shown
    type_names: tuple[str, ...] = ()  # those that it may ask for


def terms_of(config: TaskConfig, catalogue: Catalogue, *, enabled: bool) -> Terms:
    """What a parent may do in a task of that configuration."""
    return Terms(
        enabled=enabled,
        background=config.background_enabled,
        most=MAX_QUEUED if config.admission == "queue" else config.max_concurrent,
        default_seconds=config.default_timeout_ms / 1000,
        least_seconds=config.min_timeout_ms / 1000,
        most_seconds=config.max_timeout_ms / 1000,
        types=catalogue.active(config.subagent_types)[0],
        type_names=catalogue.narrowed(config.subagent_types).names,
    )
