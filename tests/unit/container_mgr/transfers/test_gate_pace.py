"""A pace holds for every sequence of writes: bytes are counted, no clock runs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from container_mgr.transfers.gate import Pacer

BLOCK = 1 << 16


@given(
    rate=st.integers(1 << 16, 1 << 40),
    steps=st.lists(st.tuples(st.integers(1, BLOCK), st.floats(0, 10)), min_size=1, max_size=60),
)
def test_no_more_than_burst_and_rate(rate: int, steps: list[tuple[int, float]]) -> None:
    pacer, now, sent, began = Pacer(rate, BLOCK), 0.0, 0, 0.0
    for size, pause in steps:
        now += pause
        now += pacer.reserve(size, now)
        sent += size
        # What idle time saved is at most one burst.
        assert sent <= 2 * BLOCK + rate * (now - began) * 1.000001
        assert size <= BLOCK


@given(rate=st.integers(1 << 16, 1 << 40), count=st.integers(2, 200))
def test_a_busy_transfer_gets_its_rate(rate: int, count: int) -> None:
    pacer, now = Pacer(rate, BLOCK), 0.0
    for _ in range(count):
        now += pacer.reserve(BLOCK, now)
    assert now <= (count - 1) * BLOCK / rate * 1.000001


def test_no_limit() -> None:
    assert Pacer(0, 0).reserve(1 << 40, 0.0) == 0
