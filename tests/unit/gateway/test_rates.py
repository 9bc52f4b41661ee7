"""Token rates, compared with the price list."""

from __future__ import annotations

import pytest

from retinue.gateway import usage_meter
from retinue.gateway.providers import BUILT_IN
from retinue.gateway.vendors.base import (
    Rates,
    UsageReading,
    rates_from_text,
    rates_to_text,
)

ANSWER = UsageReading(
    input_tokens=1000, cached_tokens=300, cache_written_tokens=100, output_tokens=50, whole=True
)


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("openai", "gpt-4o-mini"),
        ("anthropic", "claude-sonnet-4-5"),
        ("gemini", "gemini-2.5-flash"),
    ],
)
def test_rates_give_the_same_cost_as_the_price_list(provider: str, model: str) -> None:
    known, whose = usage_meter.load(), BUILT_IN[provider]
    rates = known.estimate_rates(whose, model)
    assert rates is not None
    # The gateway sends the rates to team members as a header.
    told = rates_from_text(rates_to_text(rates))
    assert told == rates
    assert told.compute_cost(ANSWER) == pytest.approx(known.compute_cost(whose, model, ANSWER))
    assert told.compute_cost(ANSWER) > 0


def test_an_unlisted_model_has_no_rates() -> None:
    assert usage_meter.load().estimate_rates(BUILT_IN["openai"], "no-such-model") is None


def test_a_self_hosted_server_costs_nothing() -> None:
    assert usage_meter.load().estimate_rates(BUILT_IN["ollama"], "anything") == Rates()


@pytest.mark.parametrize("text", ["", "1 2 3", "a b c d", "1 2 3 4 5"])
def test_malformed_rates_are_zero(text: str) -> None:
    assert rates_from_text(text) == Rates()
