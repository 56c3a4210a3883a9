from __future__ import annotations

from typing import Any

import pytest

from measure.loading.floor import floor_of


def result(**changes: Any) -> dict[str, Any]:
    row = {"io_limit_bps": None, "memory_bytes": None, "ranks": 2, "ceiling_samples_s": 100.0}
    settings = {"batch": 32, "volume": "images"}
    slow = {**row, "io_limit_bps": 5_000_000, "ceiling_samples_s": 10.0}
    return {"id": "m7", "settings": settings, "rows": [row | changes, slow]}


def test_a_ranks_batch_takes_its_share_of_the_ceiling() -> None:
    found = floor_of(result())
    assert found is not None
    assert found.step_s == pytest.approx(32 * 2 / 100)
    assert (found.measurement, found.volume, found.batch) == ("m7", "images", 32)


def test_a_jobs_own_limits_choose_the_row() -> None:
    found = floor_of(result(), io_bps=5_000_000)
    assert found is not None and found.step_s == pytest.approx(6.4)
    assert floor_of(result(), io_bps=7) is None
    assert floor_of(result(), memory_bytes=2**30) is None


def test_what_was_not_measured_bounds_nothing() -> None:
    assert floor_of(result(ceiling_samples_s=None)) is None
    assert floor_of({"rows": []}) is None
