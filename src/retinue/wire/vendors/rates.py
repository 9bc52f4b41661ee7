"""What tokens cost, as the gateway tells it to a child that has no price list."""

from __future__ import annotations

from dataclasses import dataclass

from retinue.wire.vendors.readings import Reading

RATES_HEADER = "retinue-rates"


@dataclass(frozen=True, kw_only=True)
class Rates:
    """In US dollars for each token; enough for an estimate."""

    fresh: float = 0.0
    cached: float = 0.0
    cache_written: float = 0.0
    output: float = 0.0

    def cost(self, reading: Reading) -> float:
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
    """No rates where they cannot be read."""
    try:
        fresh, cached, cache_written, output = map(float, text.split())
    except ValueError:
        return Rates()
    return Rates(fresh=fresh, cached=cached, cache_written=cache_written, output=output)
