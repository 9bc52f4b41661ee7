"""What tokens cost, by a price list that came with the installation."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from retinue.gateway.providers import Provider
from retinue.gateway.readings import Reading


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


def load() -> Prices:
    """Takes a good part of a second, and is meant for another thread."""
    return Prices(package=importlib.import_module("genai_prices"))


def _whose(provider: Provider) -> dict[str, str]:
    if provider.priced_as:
        return {"provider_id": provider.priced_as}
    return {"provider_api_url": provider.base_url}
