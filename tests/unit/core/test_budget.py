"""A budget is overrun by at most one request, in any order of requests."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from retinue.core.budget import Account, Budget, Spending, Verdict


def tokens(number: int) -> Spending:
    return Spending(input_tokens=number, turns=1)


def test_without_limits_everything_is_granted() -> None:
    account = Account(budget=Budget(), spent=Spending(input_tokens=10**9, cost=1e6, turns=10**6))
    assert account.decide(tokens(10**9)) is Verdict.GRANTED


@pytest.mark.parametrize(
    ("budget", "spent", "said"),
    [
        (Budget(tokens=10), tokens(10), "10 of 10 tokens"),
        (Budget(usd=0.5), Spending(cost=0.5), "0.5000 of 0.5 USD"),
        (Budget(turns=2), Spending(turns=2), "2 of 2 turns"),
    ],
)
def test_a_used_up_limit_is_refused_and_named(budget: Budget, spent: Spending, said: str) -> None:
    assert Account(budget=budget, spent=spent).decide(tokens(1)) is Verdict.REFUSED
    assert budget.find_reached_limit(spent) == said


def test_a_single_request_is_granted_while_anything_is_left() -> None:
    assert Account(budget=Budget(tokens=10), spent=tokens(9)).decide(tokens(500)) is Verdict.GRANTED


def test_a_request_beside_others_waits_until_it_fits() -> None:
    account = Account(budget=Budget(tokens=100)).reserve(tokens(60))
    assert account.decide(tokens(60)) is Verdict.WAIT
    assert _land(account, 60, 10).decide(tokens(60)) is Verdict.GRANTED


def test_a_request_waits_for_reservations_of_subagents() -> None:
    account = Account(budget=Budget(tokens=100), spent=tokens(50), lent=tokens(50))
    assert account.decide(tokens(1)) is Verdict.WAIT
    assert account.left.tokens == 0


def test_a_share_never_exceeds_the_rest_of_the_budget() -> None:
    left = Account(budget=Budget(tokens=100, usd=1.0, turns=9), spent=tokens(40)).left
    share = left.split(3)
    assert (share.tokens, share.turns) == (20, 2)
    assert share.usd == pytest.approx(1 / 3)


def test_narrow_takes_the_smaller_limit_of_each_kind() -> None:
    both = Budget(tokens=5, usd=None, turns=9).narrow(Budget(tokens=8, usd=2.0, turns=3))
    assert both == Budget(tokens=5, usd=2.0, turns=3)


@given(
    budget=some.integers(1, 1000),
    requests=some.lists(some.tuples(some.integers(1, 200), some.integers(0, 300)), max_size=40),
)
def test_the_overrun_is_at_most_the_excess_over_the_estimates(
    budget: int, requests: list[tuple[int, int]]
) -> None:
    account, flying, excess, largest = Account(budget=Budget(tokens=budget)), [], 0, 0
    for estimate, actual in requests:
        if account.decide(tokens(estimate)) is Verdict.GRANTED:
            account = account.reserve(tokens(estimate))
            flying.append((estimate, actual))
        if flying and (estimate + actual) % 2:
            account = _land(account, *flying.pop(0))
        excess += max(0, actual - estimate)
        largest = max(largest, estimate, actual)
    for estimate, actual in flying:
        account = _land(account, estimate, actual)
    assert account.in_flight == Spending()
    assert account.spent.tokens <= budget + excess + largest


def _land(account: Account, estimate: int, actual: int) -> Account:
    left = account.in_flight.release_request(tokens(estimate))
    return replace(account, in_flight=left, spent=account.spent + tokens(actual))
