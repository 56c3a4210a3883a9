"""Checks the moves of spares: small cases by hand, and random fabrics against all maps of homes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model import Aggregator, Endpoint, Fabric, Job, Move, Site, Spread, SpreadBy
from scheduler.regroup.spare import CROWDED, ELSEWHERE, NoPlaceError, moves, offers
from tests.unit.scheduler.brute import fits, homes_now


def two_switches() -> Fabric:
    """Return a job on as0 and as1; spares s0 on its switch, s1 on the other."""
    ends = [Endpoint(n, ocs="o0", server=f"srv{n}") for n in ("g0", "g1", "s0", "i0")]
    ends += [Endpoint("s1", ocs="o1", server="srvg0")]
    site = Site(
        "two",
        tuple(ends),
        (Aggregator("as0", {"o0": 2, "o1": 1}), Aggregator("as1", {"o0": 2, "o1": 1})),
    )
    homes = {"g0": "as0", "i0": "as0", "g1": "as1", "s0": "as1", "s1": "as1"}
    lost = frozenset({"g0", "s0", "s1"})
    return Fabric(site, homes, (Job("red", ("g0", "g1")),), lost)


def test_a_spare_takes_the_freed_port() -> None:
    fabric = two_switches()
    assert offers(fabric, ["g0"], ["s0", "s1"]) == {"s0": {"g0": 2}, "s1": {"g0": 2}}
    assert moves(fabric, {"g0": "s0"}) == (Move("g0", "as0", None), Move("s0", "as1", "as0"))
    # The other switch has a free port of that aggregator.
    assert moves(fabric, {"g0": "s1"}) == (Move("g0", "as0", None), Move("s1", "as1", "as0"))


def test_a_spare_that_is_there_needs_no_light() -> None:
    fabric = two_switches()
    assert offers(fabric, ["g1"], ["s0"]) == {"s0": {"g1": 0}}
    assert moves(fabric, {"g1": "s0"}) == ()


def test_an_idle_endpoint_makes_way() -> None:
    fabric = two_switches()
    # g0 hangs on a lost switch: its port is not freed, and i0 cannot move either.
    assert offers(fabric, ["g0"], ["s0"], ["o0"]) == {"s0": {"g0": ELSEWHERE}}
    site = replace(
        fabric.site,
        endpoints=(Endpoint("g0", fixed="as0"), *fabric.site.endpoints[1:], Endpoint("i1", "o0")),
    )
    wired = replace(fabric, site=site, homes={**fabric.homes, "i1": "as0"})
    assert offers(wired, ["g0"], ["s0"]) == {"s0": {"g0": 2}}
    assert moves(wired, {"g0": "s0"}) == (Move("s0", "as1", "as0"), Move("i1", "as0", "as1"))


def test_the_aggregator_died() -> None:
    fabric = two_switches()
    assert offers(fabric, ["g0"], ["s0"], ["as0"]) == {"s0": {"g0": ELSEWHERE}}
    assert moves(fabric, {"g0": "s0"}, ["as0"]) == ()
    dark = replace(fabric, homes={**fabric.homes, "s0": None, "s1": "as1"})
    assert moves(dark, {"g0": "s0"}, ["as0"]) == (
        Move("g0", "as0", None),
        Move("s0", None, "as1"),
    )
    with pytest.raises(NoPlaceError, match="s0"):
        moves(dark, {"g0": "s0"}, ["as0", "as1"])
    assert offers(dark, ["g0"], ["s0"], ["as0", "as1"]) == {"s0": {}}


def test_a_job_stays_apart_where_it_can() -> None:
    """The place is gone: the job's other aggregator has a port, but it has its two there."""
    ends = tuple(Endpoint(f"e{i}", "o") for i in range(4))
    site = Site("s", ends, tuple(Aggregator(f"a{i}", {"o": 4}) for i in range(3)))
    job = Job("red", ("e0", "e1", "e2"))
    fabric = Fabric(site, {"e0": "a0", "e1": "a1", "e2": "a1", "e3": "a1"}, (job,))
    assert moves(fabric, {"e0": "e3"}, ["a0"]) == ()
    apart = replace(fabric, jobs=(replace(job, spread=Spread(SpreadBy.AGGREGATOR, 2)),))
    assert moves(apart, {"e0": "e3"}, ["a0"]) == (Move("e0", "a0", None), Move("e3", "a1", "a2"))
    # Better crowded than without a spare.
    assert moves(apart, {"e0": "e3"}, ["a0", "a2"]) == ()


def test_a_crowded_server_is_the_last_choice() -> None:
    fabric = two_switches()
    spread = Spread(SpreadBy.SERVER, 1)
    site = fabric.site
    ends = tuple(replace(e, server="srvg1") if e.name == "s0" else e for e in site.endpoints)
    apart = replace(
        fabric,
        site=replace(site, endpoints=ends),
        jobs=(Job("red", ("g0", "g1"), spread=spread),),
    )
    # s1 is on the server of the dead g0 only.
    assert offers(apart, ["g0"], ["s0", "s1"]) == {"s0": {"g0": 2 + CROWDED}, "s1": {"g0": 2}}


def test_a_spare_takes_one_place() -> None:
    with pytest.raises(ValueError, match="two dead"):
        moves(two_switches(), {"g0": "s0", "g1": "s0"})


@st.composite
def losses(draw: st.DrawFn) -> tuple[Fabric, dict[str, str], frozenset[str]]:
    """Draw a small fabric, swaps for some dead endpoints, and what else is lost."""
    switches = [f"o{k}" for k in range(draw(st.sampled_from([1, 2, 2, 4])))]
    aggregators = tuple(
        Aggregator(f"a{a}", {k: draw(st.integers(0, 3)) for k in switches}, fixed_ports=6)
        for a in range(draw(st.integers(1, 3)))
    )
    free = {(a.name, k): n for a in aggregators for k, n in a.ports.items()}
    ends: list[Endpoint] = []
    homes: dict[str, str | None] = {}
    for i in range(draw(st.integers(2, 8))):
        name = f"e{i}"
        if draw(st.integers(0, 7)) == 0:
            fixed = draw(st.sampled_from(aggregators)).name
            ends.append(Endpoint(name, fixed=fixed, server=f"srv{i // 2}"))
            continue
        ocs = draw(st.sampled_from(switches))
        ends.append(Endpoint(name, ocs=ocs, server=f"srv{i // 2}"))
        open_ = [slot for slot, n in free.items() if slot[1] == ocs and n > 0]
        if open_ and draw(st.integers(0, 5)) > 0:
            slot = draw(st.sampled_from(open_))
            free[slot] -= 1
            homes[name] = slot[0]
    names = list(draw(st.permutations([e.name for e in ends])))
    swaps = {names.pop(): names.pop() for _ in range(draw(st.integers(1, min(2, len(names) // 2))))}
    members = [*swaps, *(names.pop() for _ in range(draw(st.integers(0, len(names)))))]
    cut = draw(st.integers(1, len(members)))
    spread = draw(st.none() | st.builds(Spread, st.sampled_from(SpreadBy), st.integers(1, 3)))
    jobs = tuple(
        Job(f"job{i}", tuple(some), spread=spread)
        for i, some in enumerate((members[:cut], members[cut:]))
        if some
    )
    things = [*switches, *(a.name for a in aggregators)]
    lost = frozenset(draw(st.sets(st.sampled_from(things), max_size=1)))
    held = {slot: draw(st.integers(0, n)) for slot, n in free.items()}
    fabric = Fabric(Site("random", tuple(ends), aggregators), homes, jobs, held_ports=held)
    return fabric, swaps, lost


def score(
    fabric: Fabric, swaps: dict[str, str], lost: frozenset[str], homes: dict[str, str | None]
) -> tuple[int, int, int, int] | None:
    """Return what is minimised, None if these homes are not allowed."""
    before = homes_now(fabric)
    for dead, spare in swaps.items():
        if homes[spare] is None or homes[spare] in lost:
            return None
        moved = homes[spare] != before[spare]
        breakable = before[dead] is not None and ends(fabric)[dead].ocs not in {None, *lost}
        if moved and breakable and homes[dead] is not None:
            return None
    crowd = span = 0
    for job in fabric.jobs:
        was = Counter(before[n] for n in job.endpoints)
        own = Counter(homes[swaps.get(n, n)] for n in job.endpoints)
        own = Counter({a: n for a, n in own.items() if a not in {None, *lost}})
        span += len(own)
        if (
            job.spread is not None
            and job.spread.by is SpreadBy.AGGREGATOR
            and set(job.endpoints) & set(swaps)
        ):
            crowd += sum(max(n - max(job.spread.most, was[a]), 0) for a, n in own.items())
    places = sum(homes[s] == before[d] for d, s in swaps.items())
    return crowd, -places, span, sum(homes[n] != before[n] for n in homes)


def ends(fabric: Fabric) -> dict[str, Endpoint]:
    """Return the endpoints by name."""
    return {e.name: e for e in fabric.site.endpoints}


def all_maps(
    fabric: Fabric, swaps: dict[str, str], lost: frozenset[str]
) -> list[dict[str, str | None]]:
    """Return every map of homes that a swap may lead to."""
    before = homes_now(fabric)
    idle = {e.name for e in fabric.idle()}
    live: list[str | None] = [a.name for a in fabric.site.aggregators if a.name not in lost]
    options: list[list[str | None]] = []
    for e in fabric.site.endpoints:
        now = before[e.name]
        if e.ocs is None or e.ocs in lost:
            options.append([now])
        elif e.name in swaps:
            options.append([now, None])
        elif e.name in swaps.values():
            options.append([*live])
        elif e.name in idle and now not in {None, *lost}:
            options.append([*live, None])
        else:
            options.append([now])
    maps = [dict(zip(before, chosen, strict=True)) for chosen in product(*options)]
    return [homes for homes in maps if fits(fabric, homes)]


@settings(max_examples=120, deadline=None)
@given(losses())
def test_no_map_of_homes_is_better(loss: tuple[Fabric, dict[str, str], frozenset[str]]) -> None:
    fabric, swaps, lost = loss
    keys = [score(fabric, swaps, lost, homes) for homes in all_maps(fabric, swaps, lost)]
    best = min((key for key in keys if key is not None), default=None)
    try:
        found = moves(fabric, swaps, lost)
    except NoPlaceError:
        assert best is None
        return
    homes = homes_now(fabric)
    for move in found:
        assert homes[move.endpoint] == move.source != move.target
        homes[move.endpoint] = move.target
    assert fits(fabric, homes)
    assert score(fabric, swaps, lost, homes) == best


@settings(max_examples=120, deadline=None)
@given(losses())
def test_an_offer_costs_what_its_moves_do(
    loss: tuple[Fabric, dict[str, str], frozenset[str]],
) -> None:
    fabric, swaps, lost = loss
    fabric = replace(fabric, jobs=tuple(replace(j, spread=None) for j in fabric.jobs))
    dead, spare = next(iter(swaps.items()))
    cost = offers(fabric, [dead], [spare], lost)[spare].get(dead)
    try:
        found = moves(fabric, {dead: spare}, lost)
    except NoPlaceError:
        assert cost is None
        return
    homes = homes_now(fabric) | {m.endpoint: m.target for m in found}
    in_place = homes[spare] == homes_now(fabric)[dead]
    assert cost is not None
    if in_place:
        assert cost == len(found)
    else:
        assert cost >= ELSEWHERE
