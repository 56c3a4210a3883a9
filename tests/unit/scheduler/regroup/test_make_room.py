"""Making room for a waiting job: valid plans, and estimates that agree with them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model import (
    Fabric,
    Job,
    Limits,
    Locality,
    Placement,
    Request,
    Spread,
    SpreadBy,
    Wait,
)
from scheduler.occupancy import check
from scheduler.placement.index import FabricIndex
from scheduler.placement.place import place
from scheduler.regroup import make_room
from scheduler.regroup.one_job import consolidate
from tests.unit.scheduler import brute
from tests.unit.scheduler.racks import crowded, fabrics, scattered

QUICK = Limits(time_limit_s=2.0)


@settings(max_examples=40)
@given(fabric=st.one_of(fabrics(), crowded()), count=st.integers(1, 5))
def test_a_plan_makes_the_job_fit_and_scatters_no_other(fabric: Fabric, count: int) -> None:
    request = Request("new", count, Locality.STRICT)
    before = place(fabric, request)
    plan = make_room.make_room(fabric, request, QUICK)
    if plan is None:
        return
    assert isinstance(before, Wait)
    assert before.code == "locality"
    after = replace(fabric, homes=plan.homes_after)
    check(after)
    found = place(after, request)
    assert isinstance(found, Placement)
    busy = {e for job in fabric.jobs for e in job.endpoints}
    assert plan.running_moves == sum(m.endpoint in busy for m in plan.moves)
    assert plan.bound.running_moves <= plan.running_moves
    touched = {m.endpoint for m in plan.moves}
    assert set(plan.jobs_paused) == {j.name for j in fabric.jobs if touched & set(j.endpoints)}
    for job in fabric.jobs:
        assert not (job.pinned and touched & set(job.endpoints))
    assert not touched & fabric.unavailable


@settings(max_examples=40)
@given(
    fabric=st.one_of(fabrics(), crowded()),
    count=st.integers(2, 4),
    spread=st.builds(Spread, st.sampled_from(SpreadBy), st.integers(1, 2)),
)
def test_room_is_made_for_a_job_that_must_be_apart(
    fabric: Fabric, count: int, spread: Spread
) -> None:
    request = Request("new", count, Locality.STRICT, spread=spread)
    index = FabricIndex(fabric)
    estimated = make_room.estimate(index, request, lambda name: True)
    if estimated is not None:
        homes = brute.homes_now(fabric) | {m.endpoint: m.target for m in estimated.moves}
        assert brute.fits(fabric, homes)
        assert brute.apart(fabric, homes)
    plan = make_room.make_room(fabric, request, QUICK)
    if plan is not None:
        assert brute.apart(fabric, dict(plan.homes_after))
        assert isinstance(place(replace(fabric, homes=plan.homes_after), request), Placement)


@settings(max_examples=60)
@given(fabrics() | crowded())
def test_a_quick_step_keeps_jobs_apart(fabric: Fabric) -> None:
    index = FabricIndex(fabric)
    for job in fabric.jobs:
        found = consolidate(index, job.name, lambda name: True)
        if found is None or job.pinned:
            continue
        homes = brute.homes_now(fabric) | {m.endpoint: m.target for m in found.moves}
        assert brute.fits(fabric, homes)
        assert brute.apart(fabric, homes)
        if None not in homes.values():
            assert brute.places(job, homes) == brute.least(fabric, job)


@settings(max_examples=40)
@given(fabric=st.one_of(fabrics(), crowded()), count=st.integers(2, 5))
def test_an_estimate_does_not_change_the_index(fabric: Fabric, count: int) -> None:
    index = FabricIndex(fabric)
    before = index.snapshot()
    found = make_room.estimate(index, Request("new", count, Locality.STRICT), lambda name: True)
    assert index.snapshot() == before
    if found is None:
        return
    index.rehome(found.moves)
    check(index.snapshot())


def test_limits_bound_the_cost_of_making_room() -> None:
    fabric = scattered()
    request = Request("new", 3, Locality.STRICT)
    plan = make_room.make_room(fabric, request, QUICK)
    assert plan is not None
    assert (plan.running_moves, plan.jobs_paused, plan.paused_gpus) == (1, ("red",), 2)
    assert plan.bound.running_moves == 1
    assert make_room.make_room(fabric, request, replace(QUICK, max_jobs_paused=0)) is None
    assert make_room.make_room(fabric, request, replace(QUICK, max_moves=0)) is None
    pinned = replace(fabric, jobs=(Job("red", ("g0", "g1"), pinned=True),))
    assert make_room.make_room(pinned, request, QUICK) is None
    assert make_room.make_room(fabric, Request("new", 9, Locality.STRICT), QUICK) is None
    assert make_room.make_room(fabric, Request("new", 2, Locality.STRICT), QUICK) is None
