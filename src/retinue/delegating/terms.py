"""What the configuration allows, as far as the tools' descriptions speak of it."""

from __future__ import annotations

from dataclasses import dataclass

from retinue.domain.subagent_type import SubagentType


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
