"""What a token costs, as the gateway tells it: what the price list would say of the same answer."""

from __future__ import annotations

import pytest

from retinue.gateway import prices
from retinue.gateway.providers import BUILT_IN
from retinue.wire.vendors.rates import Rates, rates_from_text, rates_to_text
from retinue.wire.vendors.readings import Reading

ANSWER = Reading(
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
def test_an_estimate_by_rates_is_what_the_list_says(provider: str, model: str) -> None:
    known, whose = prices.load(), BUILT_IN[provider]
    rates = known.rates(whose, model)
    assert rates is not None
    told = rates_from_text(rates_to_text(rates))
    assert told == rates
    assert told.cost(ANSWER) == pytest.approx(known.cost(whose, model, ANSWER))
    assert told.cost(ANSWER) > 0


def test_nobody_knows_the_rates_of_a_model_that_is_not_listed() -> None:
    assert prices.load().rates(BUILT_IN["openai"], "no-such-model") is None


def test_a_server_that_sends_no_bill_costs_nothing() -> None:
    assert prices.load().rates(BUILT_IN["ollama"], "anything") == Rates()


@pytest.mark.parametrize("text", ["", "1 2 3", "a b c d", "1 2 3 4 5"])
def test_rates_that_cannot_be_read_are_none(text: str) -> None:
    assert rates_from_text(text) == Rates()
