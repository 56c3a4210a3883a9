"""Sizes and bandwidths against nccl-tests' definitions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from measure.collectives.definitions import (
    CollectiveOperation,
    Extent,
    algbw,
    bus_factor,
    busbw,
    extent,
    seconds_at,
)

OPERATIONS = st.sampled_from(list(CollectiveOperation))


@pytest.mark.parametrize(
    ("operation", "factor"),
    [
        (CollectiveOperation.ALL_REDUCE, 1.5),
        (CollectiveOperation.ALL_GATHER, 0.75),
        (CollectiveOperation.REDUCE_SCATTER, 0.75),
        (CollectiveOperation.ALLTOALL, 0.75),
        (CollectiveOperation.BROADCAST, 1.0),
        (CollectiveOperation.REDUCE, 1.0),
        (CollectiveOperation.SENDRECV, 1.0),
    ],
)
def test_factors_of_four_ranks(operation: CollectiveOperation, factor: float) -> None:
    assert bus_factor(operation, 4) == factor


def test_a_split_array_is_rounded_down_to_16_bytes_a_rank() -> None:
    # 1,000,000 B of float32 over 3 ranks: 83,333 elements each, 83,332 of them in whole 16 bytes.
    assert extent(CollectiveOperation.ALL_GATHER, 1_000_000, 3) == Extent(83_332, 999_984)
    assert extent(CollectiveOperation.ALL_REDUCE, 1_000_000, 3) == Extent(250_000, 1_000_000)
    assert extent(CollectiveOperation.ALLTOALL, 32, 3) == Extent(0, 0)


@given(OPERATIONS, st.integers(0, 2**34), st.integers(1, 4096), st.sampled_from([1, 2, 4, 8]))
def test_an_extent_is_whole_and_never_larger(
    operation: CollectiveOperation, size: int, ranks: int, width: int
) -> None:
    array = extent(operation, size, ranks, width)
    assert array.size <= size
    assert array.size == array.count * width * (ranks if operation.splits else 1)
    if operation.splits:
        assert array.count * width % 16 == 0
        assert size - array.size < 16 * ranks + width


@given(
    OPERATIONS,
    st.integers(1, 2**40),
    st.floats(1e-7, 1e4),
    st.integers(2, 4096),
)
def test_time_and_bandwidth_are_inverse(
    operation: CollectiveOperation, size: int, seconds: float, ranks: int
) -> None:
    bandwidth = busbw(operation, size, seconds, ranks)
    assert seconds_at(operation, size, bandwidth, ranks) == pytest.approx(seconds)
    assert bandwidth == pytest.approx(algbw(size, seconds) * bus_factor(operation, ranks))
    assert bandwidth < 2 * algbw(size, seconds)


@given(st.integers(2, 4096), st.floats(1e3, 1e12), st.integers(2**20, 2**34))
def test_busbw_of_a_ring_is_its_links_rate_whatever_its_length(
    ranks: int, rate: float, size: int
) -> None:
    """2 (n - 1) steps, each of S / n bytes over every link."""
    seconds = 2 * (ranks - 1) * (size / ranks) / rate
    assert busbw(CollectiveOperation.ALL_REDUCE, size, seconds, ranks) == pytest.approx(rate)


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_no_operation_takes_no_time(seconds: float) -> None:
    with pytest.raises(ValueError, match="longer"):
        algbw(8, seconds)
