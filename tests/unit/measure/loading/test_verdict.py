from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from measure.loading.verdict import LoadingEvidence, certain, limit, remedy
from measure.statistics import Summary, summarise
from tests.unit.measure.loading.timeline import Machine, rate

RATE = st.floats(1e-3, 1e9)
SHARE = st.floats(0, 1)

CASES = {
    (5e6, 0.0): "input",
    (5e6, 0.005): "input",
    (5e6, 0.05): "input",
    (50e6, 0.0): "compute",
    (50e6, 0.005): "compute",
    (50e6, 0.05): "input",
    (500e6, 0.0): "compute",
    (500e6, 0.005): "compute",
    (500e6, 0.05): "input",
}
"""By the disk's rate and a sample's decoding: who limits a step of 40 ms with 8 samples."""


@pytest.mark.parametrize(("disk", "decode"), CASES)
def test_constructed_cases_in_simulated_time(disk: float, decode: float) -> None:
    machine = Machine(disk, decode, step_s=0.04)
    ceiling = rate(machine, loads=True, computes=False)
    model = rate(machine, loads=False, computes=True)
    together = rate(machine, loads=True, computes=True)
    assert limit(ceiling, model, together) == CASES[disk, decode]


def test_without_prefetch_nothing_overlaps_and_reading_ahead_helps() -> None:
    machine = Machine(50e6, 0.005, step_s=0.025)
    ceiling = rate(machine, loads=True, computes=False)
    model = rate(machine, loads=False, computes=True)
    bare = rate(machine, loads=True, computes=True, prefetch=0)
    deeper = rate(machine, loads=True, computes=True, prefetch=8)
    assert limit(ceiling, model, bare) == "overlap"
    assert limit(ceiling, model, deeper) in ("input", "compute")


@given(RATE, RATE, SHARE)
def test_there_is_a_verdict_for_all_rates(ceiling: float, model: float, share: float) -> None:
    together = min(ceiling, model) * max(share, 1e-3)
    assert limit(ceiling, model, together) in ("input", "compute", "overlap")


@given(RATE, RATE, st.lists(SHARE, min_size=2, max_size=6))
def test_a_faster_training_never_becomes_one_that_does_not_overlap(
    ceiling: float, model: float, shares: list[float]
) -> None:
    most = min(ceiling, model)
    found = [limit(ceiling, model, most * max(share, 1e-3)) for share in sorted(shares)]
    order = {"overlap": 0, "input": 1, "compute": 2}
    ranks = [order[verdict] for verdict in found if verdict is not None]
    assert ranks == sorted(ranks)


@given(RATE, st.floats(1.06, 1e3))
def test_the_slower_side_limits_when_it_is_reached(slower: float, factor: float) -> None:
    assert limit(slower, slower * factor, slower) == "input"
    assert limit(slower * factor, slower, slower) == "compute"


def test_the_boundary_belongs_to_what_was_reached() -> None:
    assert limit(100.0, 1000.0, 95.0) == "input"
    assert limit(100.0, 1000.0, 94.9) == "overlap"
    assert limit(1000.0, 100.0, 95.0) == "compute"
    assert limit(1000.0, 100.0, 94.9) == "overlap"


def test_bare_communication_makes_the_model_the_network() -> None:
    assert limit(1000.0, 100.0, 99.0, exposed=0.6) == "network"
    assert limit(1000.0, 100.0, 99.0, exposed=0.4) == "compute"
    assert limit(100.0, 1000.0, 99.0, exposed=0.6) == "input"


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_without_three_rates_there_is_no_verdict(wrong: float) -> None:
    assert limit(wrong, 1.0, 1.0) is None
    assert limit(1.0, wrong, 1.0) is None
    assert limit(1.0, 1.0, wrong) is None


def test_a_verdict_is_certain_when_no_end_of_the_intervals_changes_it() -> None:
    def around(middle: float, off: float) -> Summary:
        found = summarise([middle - off, middle, middle + off])
        assert found is not None
        return found

    assert certain(around(1000, 1), around(100, 1), around(99, 1))
    assert not certain(around(1000, 1), around(100, 1), around(96, 3))


def evidence(**more: float) -> LoadingEvidence:
    fields = {"ceiling": 80.0, "model": 200.0, "together": 79.0, "reading": 0.02, "decoding": 0.97}
    fields |= more
    return LoadingEvidence(
        ceiling=fields["ceiling"],
        model=fields["model"],
        together=fields["together"],
        deeper=fields.get("deeper"),
        workers=4,
        prefetch=2,
        deeper_batches=8,
        sample_bytes=10**6,
        reading=fields["reading"],
        decoding=fields["decoding"],
    )


def test_a_loader_that_decodes_all_the_time_needs_workers() -> None:
    assert "10 workers instead of 4" in remedy("input", evidence())


def test_a_loader_that_waits_for_the_disk_needs_another_volume() -> None:
    said = remedy("input", evidence(reading=0.9, decoding=0.1))
    assert "80 MB/s" in said
    assert "200 MB/s" in said


def test_reading_ahead_is_advised_only_where_it_was_seen_to_help() -> None:
    helps = evidence(ceiling=200.0, together=150.0, deeper=195.0)
    assert "read 8 batches ahead instead of 2: measured 195 samples/s (+30%)" in remedy(
        "overlap", helps
    )
    shared = evidence(ceiling=200.0, together=150.0, deeper=151.0)
    assert "share something else" in remedy("overlap", shared)
    assert remedy("overlap", evidence(ceiling=200.0, together=150.0)).endswith("2 batches")
    assert remedy(None, helps) == ""
