"""Placement by locality, refusals, and valid placements on random fabrics."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.metrics import span
from scheduler.model import (
    Aggregator,
    Endpoint,
    Fabric,
    Job,
    Locality,
    Placement,
    RankOrder,
    Request,
    Site,
    Wait,
)
from scheduler.occupancy import all_homes, check
from scheduler.placement.index import FabricIndex
from scheduler.placement.place import place
from scheduler.placement.selection import best_fit, best_fit_one
from tests.unit.scheduler.brute import aggregators_of, fits
from tests.unit.scheduler.racks import PAPER_HOMES, fabrics, paper, uniform


def placed(fabric: Fabric, request: Request) -> Placement:
    """Return the placement; fail if the job has to wait."""
    answer = place(fabric, request)
    assert isinstance(answer, Placement), answer
    return answer


def waits(fabric: Fabric, request: Request) -> Wait:
    """Return why the job waits; fail if it does not."""
    answer = place(fabric, request)
    assert isinstance(answer, Wait), answer
    return answer


def blind(name: str, count: int) -> Request:
    return Request(name, count, Locality.ANY, RankOrder.PLACED)


def after(fabric: Fabric, placement: Placement) -> Fabric:
    """Return the fabric once the idle moves of a placement are made."""
    moved = {m.endpoint: m.target for m in placement.moves}
    return replace(fabric, homes=all_homes(fabric) | moved)


def test_case_a_of_the_paper_is_scattered_by_a_blind_scheduler() -> None:
    red = placed(paper(), blind("red", 4))
    assert red.endpoints == ("gpu0", "gpu2", "gpu1", "gpu3")
    assert (red.span, red.span_possible, red.moves) == (2, 1, ())
    blue = placed(paper(Job("red", red.endpoints)), blind("blue", 2))
    assert blue.endpoints == ("gpu4", "gpu5")


def test_case_b_of_the_paper_is_scattered_by_a_blind_scheduler() -> None:
    red = placed(paper(), blind("red", 3))
    assert red.endpoints == ("gpu0", "gpu2", "gpu1")
    blue = placed(paper(Job("red", red.endpoints)), blind("blue", 3))
    assert blue.endpoints == ("gpu3", "gpu4", "gpu5")


def test_rank_order_follows_the_aggregators() -> None:
    request = Request("red", 4, Locality.ANY, RankOrder.AGGREGATOR)
    assert placed(paper(), request).endpoints == ("gpu0", "gpu1", "gpu2", "gpu3")


def test_preferred_takes_the_fullest_aggregator_that_fits() -> None:
    fabric = paper(Job("one", ("gpu2",)))
    assert placed(fabric, Request("two", 2)).endpoints == ("gpu3", "gpu5")
    assert placed(fabric, Request("three", 3)).endpoints == ("gpu0", "gpu1", "gpu4")


def test_preferred_falls_back_to_the_fewest_aggregators() -> None:
    answer = placed(paper(), Request("four", 4))
    assert (answer.span, answer.span_possible) == (2, 1)
    assert answer.moves == ()


def test_preferred_balances_over_optical_switches() -> None:
    site = Site(
        "two",
        tuple(Endpoint(f"e{i}", ocs=f"ocs{i // 4}") for i in range(8)),
        (Aggregator("as0", {"ocs0": 4, "ocs1": 4}),),
    )
    fabric = Fabric(site, {f"e{i}": "as0" for i in range(8)})
    assert placed(fabric, Request("four", 4)).endpoints == ("e0", "e1", "e4", "e5")


def test_strict_waits_and_names_the_moves_needed() -> None:
    answer = waits(paper(), Request("four", 4, Locality.STRICT))
    assert (answer.code, answer.moves_needed) == ("locality", 0)
    assert answer.reason == (
        "needs 4 endpoints under 1 aggregator, the best now is 2;"
        " re-homing idle endpoints would make it fit"
    )
    busy = paper(Job("two", ("gpu0", "gpu2")))
    answer = waits(busy, Request("four", 4, Locality.STRICT))
    assert (answer.code, answer.moves_needed) == ("locality", 1)
    pinned = paper(Job("two", ("gpu0", "gpu2"), pinned=True))
    answer = waits(pinned, Request("four", 4, Locality.STRICT))
    assert (answer.code, answer.moves_needed) == ("locality", None)


def test_strict_places_where_the_least_span_is_free() -> None:
    assert placed(paper(), Request("three", 3, Locality.STRICT)).span == 1
    assert placed(paper(), Request("five", 5, Locality.STRICT)).span == 2


def test_regroup_brings_idle_endpoints_together() -> None:
    answer = placed(paper(), Request("four", 4, Locality.REGROUP))
    assert answer.span == 1
    assert len(answer.moves) == 1


def test_regroup_moves_nothing_when_the_present_homes_do() -> None:
    answer = placed(paper(), Request("three", 3, Locality.REGROUP))
    assert (answer.span, answer.moves) == (1, ())


def test_regroup_swaps_with_an_idle_endpoint_when_no_port_is_spare() -> None:
    fabric = uniform(aggregators=2, ports=2, endpoints=4)
    fabric = Fabric(fabric.site, fabric.homes, (Job("one", ("e0",)),))
    homes = dict(fabric.homes) | {"e1": "as1", "e2": "as0"}
    fabric = Fabric(fabric.site, homes, (Job("one", ("e0",)), Job("two", ("e1",))))
    assert waits(fabric, Request("x", 2, Locality.STRICT)).moves_needed == 1
    fabric = Fabric(fabric.site, homes, (Job("one", ("e0",)),))
    answer = placed(fabric, Request("x", 2, endpoints=("e1", "e2"), locality=Locality.REGROUP))
    assert answer.span == 1
    assert {m.endpoint for m in answer.moves} == {"e2", "e3"}


def test_regroup_lights_dark_endpoints() -> None:
    homes = dict(PAPER_HOMES) | {"gpu1": None, "gpu4": None}
    fabric = paper(homes=homes)
    answer = placed(fabric, Request("all", 6, Locality.REGROUP))
    assert set(answer.endpoints) == set(PAPER_HOMES)
    assert answer.span == 2
    refused = waits(fabric, Request("all", 6, Locality.PREFERRED))
    assert refused.code == "unavailable"
    assert "2 are dark" in refused.reason


def test_regroup_waits_when_there_are_no_ports() -> None:
    site = Site(
        "short",
        tuple(Endpoint(f"e{i}", ocs="ocs0") for i in range(3)),
        (Aggregator("as0", {"ocs0": 2}),),
    )
    answer = waits(Fabric(site, {"e0": "as0"}), Request("x", 3, Locality.REGROUP))
    assert answer.code == "unavailable"


@pytest.mark.parametrize(
    ("request_", "code", "reason"),
    [
        (Request("x", 7), "not_enough_endpoints", "needs 7 endpoints, the site has 6"),
        (Request("x", 4), "busy", "needs 4 endpoints, 3 of 6 are idle"),
        (Request("x", 6), "unavailable", "needs 6 endpoints, 1 of 6 are unavailable"),
        (
            Request("x", 1, model="H100"),
            "no_match",
            "needs 1 endpoint (model H100), none of the site's 6 endpoints match",
        ),
        (
            Request("x", 1, kind="nvme", min_memory_bytes=5),
            "no_match",
            "needs 1 endpoint (kind nvme, at least 5 bytes of memory),"
            " none of the site's 6 endpoints match",
        ),
        (Request("x", 1, endpoints=("gpu9",)), "no_match", "the site has no endpoint gpu9"),
        (Request("x", 1, endpoints=("gpu0",)), "busy", "gpu0 is held by job two"),
        (Request("x", 1, endpoints=("gpu5",)), "unavailable", "gpu5 is unavailable"),
        (
            Request("x", 2, endpoints=("gpu1",)),
            "no_match",
            "needs 2 endpoints, but names 1 different ones",
        ),
        (
            Request("x", 1, endpoints=("gpu1",), model="H100"),
            "no_match",
            "gpu1 does not match: needs 1 endpoint (model H100)",
        ),
    ],
)
def test_refusals_name_numbers(request_: Request, code: str, reason: str) -> None:
    fabric = paper(Job("two", ("gpu0", "gpu2")), unavailable=["gpu5"])
    answer = waits(fabric, request_)
    assert (answer.code, answer.reason) == (code, reason)


def test_a_model_the_site_has_too_few_of() -> None:
    site = Site("mixed", (Endpoint("a", ocs="o", model="V100"), Endpoint("b", ocs="o")), ())
    answer = waits(Fabric(site, {}), Request("x", 2, model="V100"))
    assert answer.reason == "needs 2 endpoints (model V100), the site has 1 that match"


def test_a_request_for_no_endpoints_is_rejected() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        place(paper(), Request("x", 0))


def test_named_endpoints_keep_their_order() -> None:
    request = Request("x", 2, rank_order=RankOrder.PLACED, endpoints=("gpu5", "gpu0"))
    assert placed(paper(), request).endpoints == ("gpu5", "gpu0")
    strict = Request("x", 2, Locality.STRICT, endpoints=("gpu5", "gpu0"))
    assert waits(paper(), strict).code == "locality"


@given(fabrics(), st.integers(1, 8), st.sampled_from(Locality))
def test_every_placement_is_sound(fabric: Fabric, count: int, locality: Locality) -> None:
    answer = place(fabric, Request("new", count, locality))
    idle = {e.name for e in fabric.idle()}
    if isinstance(answer, Wait):
        assert answer.code in {
            "no_match",
            "not_enough_endpoints",
            "unavailable",
            "busy",
            "locality",
        }
        return
    assert len(set(answer.endpoints)) == count
    assert set(answer.endpoints) <= idle
    assert {m.endpoint for m in answer.moves} <= idle
    assert locality is Locality.REGROUP or not answer.moves
    later = after(fabric, answer)
    check(later)
    homes = all_homes(later)
    assert fits(fabric, homes)
    assert all(homes[name] is not None for name in answer.endpoints)
    assert answer.span == span(answer.endpoints, homes)
    assert answer.span >= answer.span_possible


@given(fabrics(), st.integers(1, 6))
def test_preferred_is_the_least_span_of_the_present_homes(fabric: Fabric, count: int) -> None:
    homes = all_homes(fabric)
    answer = place(fabric, Request("new", count))
    if isinstance(answer, Wait):
        return
    free = [homes[e.name] for e in fabric.idle() if homes[e.name] is not None]
    counts = sorted((free.count(a.name) for a in fabric.site.aggregators), reverse=True)
    fewest = next(n for n in range(1, len(counts) + 1) if sum(counts[:n]) >= count)
    assert answer.span == fewest
    reached = place(fabric, Request("new", count, Locality.REGROUP))
    assert isinstance(reached, Placement)
    assert reached.span_possible <= answer.span_possible
    if answer.span == 1:
        assert reached.span == 1
    if len({e.ocs for e in fabric.site.endpoints}) == 1:
        assert reached.span <= answer.span


def test_a_job_that_starts_scattered_gets_what_one_aggregator_can_take_later() -> None:
    """Two aggregators would do now with three endpoints of one switch; no regroup helps these."""
    ports = {"ocs0": 2, "ocs1": 2}
    free = {"as0": {"ocs0": 2}, "as1": {}, "as2": {"ocs0": 1, "ocs1": 1}, "as3": {"ocs1": 1}}
    switch = {"a": "ocs0", "b": "ocs0", "c": "ocs0", "d": "ocs1", "e": "ocs1"}
    taken: list[Endpoint] = []
    at: dict[str, str | None] = {"a": "as0", "b": "as0", "c": "as2", "d": "as2", "e": "as3"}
    for a, idle in free.items():
        for ocs, there in ports.items():
            for n in range(there - idle.get(ocs, 0)):
                name = f"{a}-{ocs}-{n}"
                taken.append(Endpoint(name, ocs=ocs))
                at[name] = a
    site = Site(
        "two switches",
        (*(Endpoint(name, ocs=ocs) for name, ocs in switch.items()), *taken),
        tuple(Aggregator(a, ports) for a in free),
    )
    fabric = Fabric(site, at, (Job("busy", tuple(e.name for e in taken)),))
    now = placed(fabric, Request("new", 4))
    assert (now.span, now.span_possible) == (2, 2)
    later = placed(fabric, Request("new", 4, Locality.REGROUP))
    assert (later.span, later.span_possible) == (3, 1)


def test_a_job_that_fits_under_one_aggregator_now_starts_there() -> None:
    """Also where its endpoints are then of one switch, and scattered ones would be of two."""
    ports = {"ocs0": 2, "ocs1": 2}
    switch = {"a": "ocs0", "b": "ocs1", "c": "ocs0"}
    homes: dict[str, str | None] = {"a": "as0", "b": "as1", "c": "as2"}
    taken = [
        *(("as0", "ocs1", n) for n in range(2)),
        *(("as1", "ocs1", 0), *(("as1", "ocs0", n) for n in range(2))),
        *(("as2", "ocs0", 0), *(("as2", "ocs1", n) for n in range(2))),
    ]
    busy = {f"busy{number}": one for number, one in enumerate(taken)}
    homes |= {name: a for name, (a, _, _) in busy.items()}
    switch |= {name: ocs for name, (_, ocs, _) in busy.items()}
    site = Site(
        "two switches",
        tuple(Endpoint(name, ocs=ocs) for name, ocs in switch.items()),
        tuple(Aggregator(a, ports) for a in ("as0", "as1", "as2")),
    )
    answer = placed(
        Fabric(site, homes, (Job("busy", tuple(busy)),)), Request("new", 2, Locality.REGROUP)
    )
    assert (answer.span, set(answer.endpoints)) == (1, {"a", "c"})


@given(st.data(), st.integers(1, 4), st.integers(2, 4))
def test_on_one_switch_nothing_idle_is_ever_stranded(
    data: st.DataObject, aggregators: int, ports: int
) -> None:
    """Where idle endpoints and ports under one aggregator suffice, regroup reaches span 1."""
    fabric = uniform(aggregators, ports, aggregators * ports)
    names = [e.name for e in fabric.site.endpoints]
    busy = data.draw(st.sets(st.sampled_from(names), max_size=len(names) - 1))
    fabric = Fabric(fabric.site, fabric.homes, (Job("busy", tuple(sorted(busy))),))
    idle = len(names) - len(busy)
    room = ports - min(
        sum(fabric.homes[n] == a.name for n in busy) for a in fabric.site.aggregators
    )
    for count in range(1, min(idle, room) + 1):
        assert placed(fabric, Request("new", count, Locality.REGROUP)).span == 1


@given(fabrics(most_endpoints=7, most_aggregators=3), st.integers(1, 5))
def test_regroup_reaches_the_least_span_there_is(fabric: Fabric, count: int) -> None:
    answer = place(fabric, Request("new", count, Locality.REGROUP))
    if isinstance(answer, Wait):
        return
    homes, idle = all_homes(fabric), fabric.idle()
    names = {e.name for e in idle}

    def hold(chosen: tuple[Aggregator, ...]) -> int:
        total = 0
        where = {a.name for a in chosen}
        for ocs in {e.ocs for e in idle if e.ocs}:
            ports = sum(a.ports.get(ocs, 0) for a in chosen) - sum(
                e.ocs == ocs and homes[e.name] in where and e.name not in names
                for e in fabric.site.endpoints
            )
            total += min(ports, sum(e.ocs == ocs for e in idle))
        return total + sum(e.fixed in where for e in idle)

    sizes = range(1, len(fabric.site.aggregators) + 1)
    fewest = next(
        n for n in sizes if any(hold(c) >= count for c in combinations(aggregators_of(fabric), n))
    )
    assert answer.span == fewest


@given(fabrics())
def test_one_endpoint_is_chosen_as_best_fit_would(fabric: Fabric) -> None:
    index = FabricIndex(fabric)
    pool = index.pool(Request("new", 1))
    if pool.lit:
        assert [best_fit_one(index, pool)] == best_fit(index, pool, 1)


def test_only_endpoints_with_the_volumes_are_placed() -> None:
    fabric = paper()
    stocked = {"gpu1": {"data"}, "gpu2": {"data", "scratch"}, "gpu5": {"data", "scratch"}}
    endpoints = tuple(
        replace(e, volumes=frozenset(stocked.get(e.name, ()))) for e in fabric.site.endpoints
    )
    fabric = replace(fabric, site=replace(fabric.site, endpoints=endpoints))
    both = frozenset({"data", "scratch"})
    assert set(placed(fabric, Request("red", 2, volumes=both)).endpoints) == {"gpu2", "gpu5"}
    assert set(placed(fabric, Request("red", 3, volumes=frozenset({"data"}))).endpoints) == set(
        stocked
    )
    few = waits(fabric, Request("red", 3, volumes=both))
    assert few.code == "not_enough_endpoints"
    assert "volume data and scratch" in few.reason
    assert waits(fabric, Request("red", 1, volumes=frozenset({"x"}))).code == "no_match"
    named = waits(fabric, Request("red", 1, endpoints=("gpu0",), volumes=both))
    assert "gpu0 does not match" in named.reason
    # A job without volumes may use any.
    assert len(placed(fabric, Request("red", 6)).endpoints) == 6
