"""Token prices, from the price list of the installed `genai_prices` package."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from retinue.gateway.providers import Provider
from retinue.gateway.vendors.base import Rates, UsageReading

SAMPLE_TOKENS = 1_000  # tokens in a sample computation; small enough for the base price tier


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Price list. It is part of the package and never fetched from the network."""

    package: Any

    def compute_cost(self, provider: Provider, model: str, reading: UsageReading) -> float | None:
        """Return the cost in US dollars; None if the price is unknown."""
        if provider.free:
            return 0.0
        usage = self.package.Usage(
            input_tokens=reading.input_tokens or 0,
            output_tokens=reading.output_tokens or 0,
            cache_read_tokens=reading.cached_tokens,
            cache_write_tokens=reading.cache_written_tokens,
        )
        # The provider's answer may name a more exact model than the request.
        for name in dict.fromkeys([reading.model, model]):
            try:
                found = self.package.calc_price(usage, name, **_select_price_list(provider))
            except (LookupError, ValueError):
                continue
            return float(found.total_price)
        return None

    def estimate_rates(self, provider: Provider, model: str) -> Rates | None:
        """Return the price of a single token, ignoring volume tiers; None if it is unknown."""
        return _estimate_rates(self, provider, model)


@lru_cache(maxsize=256)
def _estimate_rates(prices: Prices, provider: Provider, model: str) -> Rates | None:
    readings = (
        UsageReading(input_tokens=SAMPLE_TOKENS),
        UsageReading(input_tokens=SAMPLE_TOKENS, cached_tokens=SAMPLE_TOKENS),
        UsageReading(input_tokens=SAMPLE_TOKENS, cache_written_tokens=SAMPLE_TOKENS),
        UsageReading(output_tokens=SAMPLE_TOKENS),
    )
    costs = [prices.compute_cost(provider, model, reading) for reading in readings]
    fresh, cached, written, output = [None if c is None else c / SAMPLE_TOKENS for c in costs]
    if fresh is None or cached is None or written is None or output is None:
        return None
    return Rates(fresh=fresh, cached=cached, cache_written=written, output=output)


def load() -> Prices:
    """Import the price list. It takes a good part of a second: call it in a thread."""
    return Prices(package=importlib.import_module("genai_prices"))


def _select_price_list(provider: Provider) -> dict[str, str]:
    if provider.priced_as:
        return {"provider_id": provider.priced_as}
    return {"provider_api_url": provider.base_url}
