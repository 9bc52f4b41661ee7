"""Token counts read from an answer, and token rates, in the same form for all vendors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

RATES_HEADER = "retinue-rates"


@dataclass(frozen=True, kw_only=True)
class UsageReading:
    """Token counts read from an answer so far."""

    input_tokens: int | None = None  # includes cached tokens
    output_tokens: int | None = None  # includes reasoning tokens
    cached_tokens: int = 0
    cache_written_tokens: int = 0
    reasoning_tokens: int = 0
    characters: int = 0  # text received
    model: str = ""
    whole: bool = False  # the counts are final


def read_count(section: Mapping[str, Any], name: str) -> int:
    """Return a token count; 0 for a wrong type or a huge number, since providers may send any."""
    value = section.get(name)
    good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**12
    return int(value) if good and value is not None else 0


def read_detail(usage: Mapping[str, Any], section: str, name: str) -> int:
    details = usage.get(section)
    return read_count(details, name) if isinstance(details, Mapping) else 0


def count_characters(value: object) -> int:
    return len(value) if isinstance(value, str) else 0


@dataclass(frozen=True, kw_only=True)
class Rates:
    """US dollars for each token, for estimates."""

    fresh: float = 0.0
    cached: float = 0.0
    cache_written: float = 0.0
    output: float = 0.0

    def compute_cost(self, reading: UsageReading) -> float:
        fresh = (reading.input_tokens or 0) - reading.cached_tokens - reading.cache_written_tokens
        return (
            max(0, fresh) * self.fresh
            + reading.cached_tokens * self.cached
            + reading.cache_written_tokens * self.cache_written
            + (reading.output_tokens or 0) * self.output
        )


def rates_to_text(rates: Rates) -> str:
    return f"{rates.fresh} {rates.cached} {rates.cache_written} {rates.output}"


def rates_from_text(text: str) -> Rates:
    """Parse rates; return zero rates if the text is malformed."""
    try:
        fresh, cached, cache_written, output = map(float, text.split())
    except ValueError:
        return Rates()
    return Rates(fresh=fresh, cached=cached, cache_written=cache_written, output=output)
