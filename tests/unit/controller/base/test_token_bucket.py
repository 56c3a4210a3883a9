"""The token bucket: rate, burst, debt."""

from __future__ import annotations

from controller.base.token_bucket import TokenBucket


def test_it_is_full_at_the_first_use_and_gains_tokens_with_time() -> None:
    bucket = TokenBucket(rate=2.0, burst=3.0)
    assert [bucket.consume(100.0) for _ in range(4)] == [True, True, True, False]
    assert [bucket.consume(100.5) for _ in range(2)] == [True, False]


def test_it_holds_no_more_than_its_burst() -> None:
    bucket = TokenBucket(rate=2.0, burst=3.0)
    assert bucket.consume(0.0)
    assert [bucket.consume(1000.0) for _ in range(4)] == [True, True, True, False]


def test_what_costs_more_than_there_is_takes_nothing() -> None:
    bucket = TokenBucket(rate=1.0, burst=3.0)
    assert not bucket.consume(0.0, cost=4)
    assert bucket.consume(0.0, cost=3)


def test_it_says_how_long_to_wait() -> None:
    bucket = TokenBucket(rate=2.0, burst=1.0)
    assert bucket.wait_s(0.0) == 0.0
    assert bucket.consume(0.0)
    assert bucket.wait_s(0.0) == 0.5
    assert bucket.wait_s(0.25) == 0.25
    assert bucket.consume(0.5)


def test_what_is_spent_beyond_the_burst_is_owed() -> None:
    work = TokenBucket(rate=0.25, burst=10.0)
    assert work.spend(0.0, 10.0) == 0.0
    assert work.spend(0.0, 1.0) == 4.0
    assert work.spend(4.0, 0.0) == 0.0
