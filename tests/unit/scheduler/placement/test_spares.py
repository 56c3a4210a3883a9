"""Checks which idle endpoints are reserved as a job's spares."""

from __future__ import annotations

from dataclasses import replace

from scheduler.model import (
    Aggregator,
    Endpoint,
    Fabric,
    Job,
    Locality,
    Placement,
    Request,
    Site,
    Wait,
)
from scheduler.placement.index import FabricIndex
from scheduler.placement.place import place
from tests.unit.scheduler.racks import paper


def spares(fabric: Fabric, request: Request) -> tuple[str, ...]:
    """Return the spares that a request gets."""
    placed = place(fabric, request)
    assert isinstance(placed, Placement)
    assert not set(placed.spares) & set(placed.endpoints)
    return placed.spares


def test_a_spare_is_on_another_server_and_breaks_no_block() -> None:
    # gpu1 shares a server with gpu0; of the others gpu4 is the last one under its aggregator.
    assert spares(paper(), Request("a", 1, endpoints=("gpu0",), spares=1)) == ("gpu4",)
    taken = paper(Job("b", ("gpu4",)))
    # as0 has gpu1 only, but its server is the job's.
    assert spares(taken, Request("a", 1, endpoints=("gpu0",), spares=1)) == ("gpu2",)


def test_no_spares_are_asked_for() -> None:
    assert spares(paper(), Request("a", 2)) == ()


def test_a_job_waits_for_the_spares_that_it_needs() -> None:
    request = Request("a", 5, spares=2)
    waits = place(paper(), request)
    assert isinstance(waits, Wait)
    assert waits.code == "spares"
    assert "2 idle endpoints as spares beside its 5 endpoints, there are 1" in waits.reason
    assert len(spares(paper(), replace(request, spares_needed=False))) == 1


def test_a_spare_matches_the_request() -> None:
    ends = tuple(Endpoint(f"g{i}", "o", model="ab"[i > 2]) for i in range(5))
    fabric = Fabric(Site("s", ends, (Aggregator("as0", {"o": 5}),)), {e.name: "as0" for e in ends})
    assert (
        spares(
            fabric,
            Request("a", 2, model="b", endpoints=("g3", "g4"), spares=1, spares_needed=False),
        )
        == ()
    )
    assert spares(fabric, Request("a", 1, model="b", spares=1)) == ("g4",)


def test_a_spare_whose_light_can_come_is_preferred() -> None:
    ends = (
        Endpoint("g0", "o0", server="a"),
        Endpoint("far", fixed="as1", server="b"),
        Endpoint("other", "o1", server="c"),
        Endpoint("dark", "o0", server="d"),
    )
    site = Site("s", ends, (Aggregator("as0", {"o0": 2}), Aggregator("as1", {"o1": 2}, 1)))
    fabric = Fabric(site, {"g0": "as0", "other": "as1"})
    request = Request("a", 1, endpoints=("g0",), spares=3)
    assert spares(fabric, request)[0] == "dark"
    assert set(spares(fabric, request)) == {"dark", "far", "other"}


def test_the_index_frees_spares_at_the_end() -> None:
    index = FabricIndex(paper())
    index.start(Job("a", ("gpu0",), spares=("gpu4", "gpu1")))
    assert index.free == 3
    assert index.snapshot().unavailable == {"gpu4", "gpu1"}
    again = FabricIndex(index.snapshot())
    assert (again.free, again.reserved) == (3, index.reserved)
    assert not again.unavailable
    waits = place(again, Request("b", 1, Locality.ANY, endpoints=("gpu4",)))
    assert isinstance(waits, Wait)
    assert waits.code == "busy"
    for some in (index, again):
        some.finish("a")
        assert some.free == 6
        assert some.snapshot() == replace(paper(), homes=some.homes())
        assert not some.held.any()
        assert not some.stuck.any()
