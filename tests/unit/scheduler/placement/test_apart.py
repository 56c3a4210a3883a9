"""Checks jobs that must be spread, against all selections and homes of small fabrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model import (
    Aggregator,
    Endpoint,
    Fabric,
    Job,
    Locality,
    Placement,
    Request,
    Site,
    Spread,
    SpreadBy,
    Wait,
)
from scheduler.occupancy import capacities
from scheduler.placement.index import FabricIndex
from scheduler.placement.place import place
from scheduler.queue.round import fit
from tests.unit.scheduler.brute import Homes, fits, homes_now
from tests.unit.scheduler.racks import paper

TWO_IN_ONE = Spread(SpreadBy.SERVER, 1)


def test_no_two_in_one_server() -> None:
    # srv0 has gpu0 and gpu1: with best fit the job would have both.
    placed = place(paper(), Request("a", 2))
    assert isinstance(placed, Placement)
    assert placed.endpoints == ("gpu0", "gpu1")
    placed = place(paper(), Request("a", 2, spread=TWO_IN_ONE))
    assert isinstance(placed, Placement)
    assert (placed.span, placed.endpoints) == (1, ("gpu0", "gpu4"))


@pytest.mark.parametrize("locality", list(Locality))
def test_never_and_not_now_are_told_apart(locality: Locality) -> None:
    request = Request("a", 5, locality, spread=TWO_IN_ONE)
    waits = place(paper(), request)
    assert isinstance(waits, Wait)
    assert waits.code == "never_spread"
    assert "at most 1 in one server" in waits.reason
    busy = paper(Job("b", ("gpu4",)))
    waits = place(busy, replace(request, count=4))
    assert isinstance(waits, Wait)
    assert waits.code == "spread"
    named = replace(request, count=2, endpoints=("gpu0", "gpu1"))
    waits = place(paper(), named)
    assert isinstance(waits, Wait)
    assert waits.code == "never_spread"


def test_named_endpoints_are_rehomed_to_be_apart() -> None:
    request = Request("a", 2, endpoints=("gpu4", "gpu0"), spread=Spread(SpreadBy.AGGREGATOR, 1))
    waits = place(paper(), request)
    assert isinstance(waits, Wait)
    assert waits.code == "spread"
    placed = fit(FabricIndex(paper()), request)
    assert isinstance(placed, Placement)
    assert set(placed.endpoints) == {"gpu0", "gpu4"}
    assert len(placed.moves) == 1
    assert placed.span == placed.span_possible == 2


def spreads_of(fabric: Fabric, request: Request, homes: Homes) -> Iterator[int]:
    """Yield the spans of all selections of idle lit endpoints that are spread as they must be."""
    idle = [e for e in fabric.idle() if homes[e.name] is not None]
    if request.endpoints:
        idle = [e for e in idle if e.name in request.endpoints]
    spread = request.spread
    assert spread is not None
    for chosen in combinations(idle, request.count):
        servers = Counter(e.server for e in chosen)
        there = Counter(homes[e.name] for e in chosen)
        tops = [max(servers.values())]
        if spread.by is SpreadBy.AGGREGATOR:
            tops.append(max(there.values()))
        if max(tops) <= spread.most:
            yield len(there)


def all_homes_of_idle(fabric: Fabric) -> Iterator[Homes]:
    """Yield every map of homes in which only idle endpoints have moved."""
    before = homes_now(fabric)
    idle = {e.name for e in fabric.idle()}
    aggregators: list[str | None] = [a.name for a in fabric.site.aggregators]
    options = [
        [before[e.name]] if e.fixed or e.name not in idle else [*aggregators, None]
        for e in fabric.site.endpoints
    ]
    for chosen in product(*options):
        homes = dict(zip(before, chosen, strict=True))
        if fits(fabric, homes):
            yield homes


def kept(
    endpoints: tuple[Endpoint, ...], request: Request, placed: Placement, homes: Homes
) -> bool:
    """Return whether a placement is spread as the request asks, with these homes."""
    spread = request.spread
    assert spread is not None
    chosen = [e for e in endpoints if e.name in placed.endpoints]
    groups = [Counter(e.server for e in chosen)]
    if spread.by is SpreadBy.AGGREGATOR:
        groups.append(Counter(str(homes[e.name]) for e in chosen))
    return all(n <= spread.most for group in groups for n in group.values())


@st.composite
def mostly_idle(draw: st.DrawFn) -> Fabric:
    """Draw six or seven endpoints on few servers and aggregators, most of them idle and lit."""
    switches = draw(st.sampled_from([1, 1, 2]))
    size = draw(st.integers(6, 7))
    ends = []
    for i in range(size):
        server = f"srv{draw(st.integers(0, 3))}"
        if draw(st.integers(0, 9)) == 0:
            ends.append(Endpoint(f"e{i}", fixed="as0", server=server))
        else:
            ends.append(Endpoint(f"e{i}", f"o{i % switches}", server=server))
    aggregators = tuple(
        Aggregator(f"as{a}", {f"o{k}": draw(st.integers(1, 4)) for k in range(switches)}, 7)
        for a in range(draw(st.integers(2, 3)))
    )
    site = Site("idle", tuple(ends), aggregators)
    free = capacities(Fabric(site, {}))
    homes: Homes = {}
    for e in ends:
        open_ = [slot for slot, n in free.items() if slot[1] == e.ocs and n > 0]
        if open_ and draw(st.integers(0, 9)) > 0:
            slot = draw(st.sampled_from(open_))
            free[slot] -= 1
            homes[e.name] = slot[0]
    busy = tuple(e.name for e in ends[: draw(st.integers(0, 2))])
    jobs = (Job("old", busy, pinned=draw(st.booleans())),) if busy else ()
    return Fabric(site, homes, jobs)


@settings(max_examples=60)
@given(
    mostly_idle(),
    st.integers(2, 4),
    st.sampled_from(Locality),
    st.builds(Spread, st.sampled_from(SpreadBy), st.integers(1, 2)),
)
def test_no_selection_has_a_smaller_span(
    fabric: Fabric, count: int, locality: Locality, spread: Spread
) -> None:
    request = Request("new", count, locality, spread=spread)
    before = homes_now(fabric)
    now = min(spreads_of(fabric, request, before), default=None)
    moved = min(
        (n for homes in all_homes_of_idle(fabric) for n in spreads_of(fabric, request, homes)),
        default=None,
    )
    empty = replace(fabric, jobs=())
    ever = min(
        (n for homes in all_homes_of_idle(empty) for n in spreads_of(empty, request, homes)),
        default=None,
    )
    placed = place(fabric, request)
    if isinstance(placed, Placement):
        homes = before | {m.endpoint: m.target for m in placed.moves}
        assert fits(fabric, homes)
        assert kept(fabric.site.endpoints, request, placed, homes)
        assert placed.span == len({homes[n] for n in placed.endpoints})
        assert locality is Locality.REGROUP or not placed.moves
    if locality is Locality.REGROUP:
        assert (placed.span if isinstance(placed, Placement) else None) == moved
    elif locality is Locality.PREFERRED:
        assert (placed.span if isinstance(placed, Placement) else None) == now
    elif locality is Locality.ANY:
        assert isinstance(placed, Placement) == (now is not None)
    elif isinstance(placed, Placement):
        assert placed.span == now == ever
    else:
        assert now is None or ever is None or now > ever
        if placed.code == "locality":
            assert (placed.moves_needed == 0) == (moved == ever)
    if isinstance(placed, Wait) and placed.code == "never_spread":
        assert ever is None
