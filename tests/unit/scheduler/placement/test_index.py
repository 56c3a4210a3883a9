"""Buckets and the fabric index: updates in place equal a new index."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler import metrics
from scheduler.model import Fabric, Job, Locality, Move, Placement, Request
from scheduler.occupancy import all_homes, occupied
from scheduler.placement.buckets import Buckets
from scheduler.placement.index import FabricIndex
from scheduler.placement.place import place
from tests.unit.scheduler.racks import fabrics, paper, uniform


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.data())
def test_buckets_are_first_fit_by_definition(counts: list[int], data: st.DataObject) -> None:
    buckets = Buckets(counts)
    for _ in range(5):
        key = data.draw(st.integers(0, len(counts) - 1))
        delta = data.draw(st.integers(-counts[key], 3))
        counts[key] += delta
        buckets.add(key, delta)
        least = data.draw(st.integers(0, 8))
        fitting = [(n, k) for k, n in enumerate(counts) if n >= least]
        assert buckets.tightest(least) == (min(fitting)[1] if fitting else None)
        assert buckets.fullest() == max(range(len(counts)), key=lambda k: (counts[k], -k))
        assert list(buckets.ascending(least)) == [k for _, k in sorted(fitting)]


def state_of(index: FabricIndex, request: Request) -> tuple[object, ...]:
    """Return the whole state of an index, as plain values."""
    pool = index.pool(request)
    servers = index.servers(pool)
    return (
        index.held.tolist(),
        index.stuck.tolist(),
        index.lit.tolist(),
        index.idle_at,
        index.idle_dark,
        index.owner,
        index.free,
        index.total_excess,
        {name: index.excess(name) for name in sorted(index.jobs)},
        (pool.idle, pool.lit, pool.lost, pool.total, pool.by_free.counts, servers.counts),
        (pool.idle_by_slot, pool.fixed.tolist()),
    )


@given(fabrics(), st.data())
def test_an_updated_index_equals_a_new_one(fabric: Fabric, data: st.DataObject) -> None:
    index = FabricIndex(fabric)
    any_ = Request("x", 1)
    index.servers(index.pool(any_))
    for step in range(6):
        kind = data.draw(st.sampled_from(["start", "finish", "move", "lose"]))
        if kind == "start":
            request = Request(f"new{step}", data.draw(st.integers(1, 5)), Locality.REGROUP)
            answer = place(index, request)
            if isinstance(answer, Placement):
                pinned = data.draw(st.booleans())
                index.start(Job(answer.job, answer.endpoints, pinned=pinned), answer.moves)
        elif kind == "finish" and index.jobs:
            index.finish(data.draw(st.sampled_from(sorted(index.jobs))))
        elif kind == "move":
            _move_one(index, data)
        else:
            index.withhold([data.draw(st.sampled_from(index.names))])
        assert state_of(index, any_) == state_of(FabricIndex(index.snapshot()), any_)
        now = index.snapshot()
        assert index.total_excess == metrics.total_excess_span(now, now.homes)
        assert index.homes() == all_homes(now)


def _move_one(index: FabricIndex, data: st.DataObject) -> None:
    site = index.site
    used = occupied(site.endpoints, index.homes())
    endpoint = data.draw(st.sampled_from(site.endpoints))
    open_ = [a for (a, k), n in index.capacities().items() if k == endpoint.ocs and used[a, k] < n]
    target = data.draw(st.sampled_from([None, *open_]))
    if endpoint.ocs is not None:
        index.rehome([Move(endpoint.name, index.homes()[endpoint.name], target)])


def test_a_busy_endpoint_is_not_given_twice() -> None:
    index = FabricIndex(paper(Job("a", ("gpu0",)), unavailable=["gpu5"]))
    for name in ("gpu0", "gpu5"):
        with pytest.raises(ValueError, match=f"{name} is not idle"):
            index.start(Job("b", (name,)))
    with pytest.raises(ValueError, match="job a is running"):
        index.start(Job("a", ("gpu1",)))
    assert index.free == 4


def test_placing_changes_nothing() -> None:
    index = FabricIndex(uniform(aggregators=4, ports=4, endpoints=16, switches=2))
    request = Request("x", 7)
    before = state_of(index, request)
    answers = [
        place(index, replace(request, locality=locality)) for locality in (*Locality, *Locality)
    ]
    assert answers[:4] == answers[4:]
    assert state_of(index, request) == before
    assert answers[0] == place(index.snapshot(), replace(request, locality=Locality.STRICT))
