"""Back-off after a provider's refusal, and the fair queue of waiting requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from retinue.gateway.rate_limiter import FIRST_PAUSE_MS, LONGEST_PAUSE_MS, FairQueue, RateLimitState


def refused(
    pace: RateLimitState, now_ms: int, jitter: float = 1.0, after: int | None = None
) -> RateLimitState:
    return pace.record_sent().record_refusal(now_ms, retry_after_ms=after, jitter=jitter)


def test_a_provider_without_refusals_has_no_limit() -> None:
    pace = RateLimitState()
    for _ in range(1000):
        assert pace.can_send(0)
        pace = pace.record_sent()


def test_a_refusal_pauses_all_requests() -> None:
    pace = refused(RateLimitState(), 1000)
    assert not pace.can_send(1000 + FIRST_PAUSE_MS - 1)
    assert pace.can_send(1000 + FIRST_PAUSE_MS)


def test_pauses_grow_until_an_answer_comes() -> None:
    pace, now, waits = RateLimitState(), 0, []
    for _ in range(4):
        pace = refused(pace, now)
        waits.append(pace.wait_ms(now))
        now = pace.not_before_ms
    assert waits == [500, 1000, 2000, 4000]
    pace = refused(pace.record_sent().record_answer(), now)
    assert pace.wait_ms(now) == 500


def test_refusals_of_concurrent_requests_count_as_one() -> None:
    pace = RateLimitState()
    for _ in range(8):
        pace = pace.record_sent()
    for _ in range(8):
        pace = pace.record_refusal(100, retry_after_ms=None, jitter=1.0)
    assert (pace.strikes, pace.in_flight, pace.wait_ms(100)) == (1, 0, 500)
    assert pace.width == 4


def test_the_providers_retry_after_is_respected() -> None:
    assert refused(RateLimitState(), 0, jitter=0.0, after=7000).wait_ms(0) == 7000


def test_after_a_pause_each_answer_admits_one_more_request() -> None:
    pace = refused(RateLimitState(), 0)
    later = pace.not_before_ms
    pace = pace.record_sent()
    assert not pace.can_send(later)
    pace = pace.record_answer()
    assert pace.record_sent().can_send(later)


@given(
    jitters=some.lists(some.floats(0, 1), min_size=1, max_size=60),
    after=some.none() | some.integers(0, 10**9),
)
def test_no_pause_is_longer_than_the_longest(jitters: list[float], after: int | None) -> None:
    pace, now = RateLimitState(), 0
    for jitter in jitters:
        pace = refused(pace, now, jitter, after)
        assert 0 < pace.wait_ms(now) <= LONGEST_PAUSE_MS * 1.1
        now = pace.not_before_ms
    assert pace.in_flight == 0


@given(some.lists(some.integers(0, 4), max_size=60))
def test_waiting_requests_are_served_round_robin(owners: list[int]) -> None:
    queue: FairQueue[tuple[int, int]] = FairQueue()
    for number, owner in enumerate(owners):
        queue.push(owner, (owner, number))
    left = {owner: owners.count(owner) for owner in owners}
    served: list[tuple[int, int]] = []
    while (item := queue.pop()) is not None:
        served.append(item)
    assert sorted(served) == sorted((owner, n) for n, owner in enumerate(owners))
    for rank in range(max(left.values(), default=0)):
        able = [owner for owner, count in left.items() if count > rank]
        turn, served = served[: len(able)], served[len(able) :]
        assert sorted(owner for owner, _ in turn) == sorted(able)


def test_an_abandoned_waiter_is_skipped() -> None:
    queue: FairQueue[str] = FairQueue()
    for owner in ("a", "b"):
        queue.push(owner, owner)
    queue.remove("a", "a")
    queue.remove("a", "a")
    assert (queue.pop(), queue.pop(), len(queue)) == ("b", None, 0)
