"""What tokens cost, by a price list that came with the installation."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from retinue.gateway.providers import Provider
from retinue.wire.vendors.rates import Rates
from retinue.wire.vendors.readings import Reading

MANY = 1_000  # tokens, at which prices are the usual ones


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Asks nobody: the list is a part of the package, and is never fetched."""

    package: Any

    def cost(self, provider: Provider, model: str, reading: Reading) -> float | None:
        """In US dollars; None where nobody knows the price."""
        if provider.free:
            return 0.0
        usage = self.package.Usage(
            input_tokens=reading.input_tokens or 0,
            output_tokens=reading.output_tokens or 0,
            cache_read_tokens=reading.cached_tokens,
            cache_write_tokens=reading.cache_written_tokens,
        )
        for name in dict.fromkeys([reading.model, model]):
            try:
                found = self.package.calc_price(usage, name, **_whose(provider))
            except (LookupError, ValueError):
                continue
            return float(found.total_price)
        return None

    def rates(self, provider: Provider, model: str) -> Rates | None:
        """About what each token costs, without what changes with their number; None as above."""
        return _rates(self, provider, model)


@lru_cache(maxsize=256)
def _rates(prices: Prices, provider: Provider, model: str) -> Rates | None:
    readings = (
        Reading(input_tokens=MANY),
        Reading(input_tokens=MANY, cached_tokens=MANY),
        Reading(input_tokens=MANY, cache_written_tokens=MANY),
        Reading(output_tokens=MANY),
    )
    costs = [prices.cost(provider, model, reading) for reading in readings]
    fresh, cached, written, output = [None if c is None else c / MANY for c in costs]
    if fresh is None or cached is None or written is None or output is None:
        return None
    return Rates(fresh=fresh, cached=cached, cache_written=written, output=output)


def load() -> Prices:
    """Takes a good part of a second, and is meant for another thread."""
    return Prices(package=importlib.import_module("genai_prices"))


def _whose(provider: Provider) -> dict[str, str]:
    if provider.priced_as:
        return {"provider_id": provider.priced_as}
    return {"provider_api_url": provider.base_url}
