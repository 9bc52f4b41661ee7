"""A provider that refused is left alone by all; whoever waits gets a turn in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from retinue.domain.cooldown import FIRST_PAUSE_MS, LONGEST_PAUSE_MS, FairQueue, Pace


def refused(pace: Pace, now_ms: int, jitter: float = 1.0, after: int | None = None) -> Pace:
    return pace.sent().refused(now_ms, retry_after_ms=after, jitter=jitter)


def test_a_provider_that_never_refused_gets_everything_at_once() -> None:
    pace = Pace()
    for _ in range(1000):
        assert pace.may_go(0)
        pace = pace.sent()


def test_a_refusal_stops_everybody_for_a_while() -> None:
    pace = refused(Pace(), 1000)
    assert not pace.may_go(1000 + FIRST_PAUSE_MS - 1)
    assert pace.may_go(1000 + FIRST_PAUSE_MS)


def test_pauses_grow_until_an_answer_comes() -> None:
    pace, now, waits = Pace(), 0, []
    for _ in range(4):
        pace = refused(pace, now)
        waits.append(pace.wait_ms(now))
        now = pace.not_before_ms
    assert waits == [500, 1000, 2000, 4000]
    pace = refused(pace.sent().answered(), now)
    assert pace.wait_ms(now) == 500


def test_refusals_of_requests_that_were_under_way_together_are_one() -> None:
    pace = Pace()
    for _ in range(8):
        pace = pace.sent()
    for _ in range(8):
        pace = pace.refused(100, retry_after_ms=None, jitter=1.0)
    assert (pace.strikes, pace.in_flight, pace.wait_ms(100)) == (1, 0, 500)
    assert pace.width == 4


def test_what_the_provider_asks_for_is_kept() -> None:
    assert refused(Pace(), 0, jitter=0.0, after=7000).wait_ms(0) == 7000


def test_after_a_pause_few_go_at_once_and_each_answer_lets_one_more_go() -> None:
    pace = refused(Pace(), 0)
    later = pace.not_before_ms
    pace = pace.sent()
    assert not pace.may_go(later)
    pace = pace.answered()
    assert pace.sent().may_go(later)


@given(
    jitters=some.lists(some.floats(0, 1), min_size=1, max_size=60),
    after=some.none() | some.integers(0, 10**9),
)
def test_no_pause_is_longer_than_the_longest(jitters: list[float], after: int | None) -> None:
    pace, now = Pace(), 0
    for jitter in jitters:
        pace = refused(pace, now, jitter, after)
        assert 0 < pace.wait_ms(now) <= LONGEST_PAUSE_MS * 1.1
        now = pace.not_before_ms
    assert pace.in_flight == 0


@given(some.lists(some.integers(0, 4), max_size=60))
def test_nobody_gets_a_second_turn_before_all_who_wait_had_one(owners: list[int]) -> None:
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


def test_who_waits_no_more_is_passed_over() -> None:
    queue: FairQueue[str] = FairQueue()
    for owner in ("a", "b"):
        queue.push(owner, owner)
    queue.remove("a", "a")
    queue.remove("a", "a")
    assert (queue.pop(), queue.pop(), len(queue)) == ("b", None, 0)
