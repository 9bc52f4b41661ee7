"""What an attempt is given of models, and what it took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from retinue.domain.recovery import TokenUsage


@dataclass(frozen=True, kw_only=True)
class ModelAccess:
    """How a child reaches models: what it is told, and where the other end is."""

    environment: Mapping[str, str] = field(default_factory=dict)  # empty: it does not
    listens: bool = False  # the child's first process opens the address, and hands it over


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What one attempt took of its subagent's budget."""

    usage: TokenUsage | None = None  # None when nothing passed
    over_budget: str = ""  # which limit it reached
