"""Plans in batches: valid on their own, within the limit of dark endpoints, and few."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model import Aggregator, Endpoint, Fabric, Job, Limits, Plan, Site
from scheduler.occupancy import FabricError, all_homes, check, moves_between
from scheduler.regroup.batches import BatchError, Batches, cut_into_batches, least_batches
from scheduler.regroup.plan import plan_regroup
from tests.unit.scheduler.racks import CASE_A, crowded, fabrics, paper, uniform


def owners(fabric: Fabric) -> dict[str, str]:
    return {name: job.name for job in fabric.jobs for name in job.endpoints}


def verify(
    fabric: Fabric,
    made: Plan,
    found: Batches,
    max_dark: int,
    *,
    max_pauses: int,
    park: bool = False,
) -> None:
    """Carry the batches out one by one, as a fabric would."""
    homes = all_homes(fabric)
    owner = owners(fabric)
    batch_of: dict[str, set[int]] = {}
    moved: Counter[str] = Counter()
    for number, batch in enumerate(found.batches):
        assert 0 < len(batch) <= max_dark
        assert len({move.endpoint for move in batch}) == len(batch)
        for move in batch:
            assert move.source == homes[move.endpoint] != move.target
            homes[move.endpoint] = move.target
            moved[move.endpoint] += 1
            if move.endpoint in owner:
                batch_of.setdefault(owner[move.endpoint], set()).add(number)
        # Breaks come first, so the ports after a batch are the most it uses.
        check(replace(fabric, homes=dict(homes)))
    assert homes == dict(found.homes_after)
    assert all(homes[name] == made.homes_after[name] for name in owner)
    assert all(n <= max_pauses for name, n in moved.items() if name in owner)
    assert not moved.keys() & fabric.unavailable
    assert found.pauses == {job: len(numbers) for job, numbers in batch_of.items()}
    assert all(pauses <= max_pauses for pauses in found.pauses.values())
    assert found.least <= len(found.batches)


@settings(max_examples=120)
@given(
    fabrics() | crowded(most_aggregators=4, ports=4),
    st.integers(1, 8),
    st.integers(1, 3),
    st.booleans(),
)
def test_every_batch_can_be_carried_out_on_its_own(
    fabric: Fabric, max_dark: int, max_pauses: int, park: bool
) -> None:
    made = plan_regroup(fabric, Limits(time_limit_s=2.0))
    while True:
        try:
            found = cut_into_batches(fabric, made.moves, max_dark, max_pauses=max_pauses, park=park)
        except BatchError as error:
            assert error.needed > max_dark
            max_dark = error.needed
        else:
            break
    verify(fabric, made, found, max_dark, max_pauses=max_pauses, park=park)
    # Without a bound it is one batch, the plan itself.
    assert cut_into_batches(fabric, made.moves).batches == ((made.moves,) if made.moves else ())


def ordered_partitions(items: frozenset[str]) -> Iterator[list[frozenset[str]]]:
    if not items:
        yield []
    for size in range(1, len(items) + 1):
        for first in combinations(sorted(items), size):
            for rest in ordered_partitions(items - set(first)):
                yield [frozenset(first), *rest]


def fewest(fabric: Fabric, made: Plan, max_dark: int) -> int | None:
    """Try every order of whole jobs; None if none is valid."""
    owner = owners(fabric)
    best = None
    for order in ordered_partitions(frozenset(owner[m.endpoint] for m in made.moves)):
        if best is not None and len(order) >= best:
            continue
        homes, sound = all_homes(fabric), True
        for jobs in order:
            batch = [m for m in made.moves if owner[m.endpoint] in jobs]
            homes.update({m.endpoint: m.target for m in batch})
            try:
                check(replace(fabric, homes=dict(homes)))
            except FabricError:
                sound = False
            sound &= len(batch) <= max_dark
        if sound:
            best = len(order)
    return best


@settings(max_examples=60)
@given(crowded(most_aggregators=4), st.integers(1, 8))
def test_the_bound_holds_against_every_order(fabric: Fabric, max_dark: int) -> None:
    owner = owners(fabric)
    singles = [Job(name, (name,)) for name in fabric.homes if name not in owner]
    fabric = replace(fabric, jobs=(*fabric.jobs, *singles))
    made = plan_regroup(fabric, Limits(time_limit_s=2.0))
    best = fewest(fabric, made, max_dark)
    try:
        found = cut_into_batches(fabric, made.moves, max_dark)
    except BatchError:
        return
    assert best is not None
    assert found.least <= best <= len(found.batches)


def line(*homes: str, ports: int = 1, aggregators: int = 4) -> Fabric:
    """Return endpoints e0, e1, … on one optical switch."""
    site = Site(
        "line",
        tuple(Endpoint(f"e{i}", ocs="ocs0") for i in range(len(homes))),
        tuple(Aggregator(f"as{a}", {"ocs0": ports}) for a in range(aggregators)),
    )
    return Fabric(site, {f"e{i}": home for i, home in enumerate(homes)})


def by_hand(fabric: Fabric, after: Sequence[str]) -> Plan:
    """Return the plan that moves every endpoint to its home in ``after``."""
    made = plan_regroup(fabric, Limits())
    homes = {f"e{i}": home for i, home in enumerate(after)}
    before = all_homes(fabric)
    return replace(made, homes_after=homes, moves=moves_between(fabric.site, before, homes))


def test_a_port_is_free_before_it_is_taken() -> None:
    fabric = line("as0", "as1", "as2")
    fabric = replace(fabric, jobs=tuple(Job(f"j{i}", (f"e{i}",)) for i in range(3)))
    found = cut_into_batches(fabric, by_hand(fabric, ("as1", "as2", "as3")).moves, 1)
    assert [[m.endpoint for m in batch] for batch in found.batches] == [["e2"], ["e1"], ["e0"]]
    assert found.least == 3


def test_jobs_that_block_each_other_go_together() -> None:
    fabric = line("as0", "as1")
    fabric = replace(fabric, jobs=(Job("a", ("e0",)), Job("b", ("e1",))))
    made = by_hand(fabric, ("as1", "as0"))
    with pytest.raises(BatchError, match="a, b would take 2") as caught:
        cut_into_batches(
            replace(fabric, site=line("as0", "as1", aggregators=2).site), made.moves, 1
        )
    assert caught.value.needed == 2


def test_a_job_stays_whole_or_is_split_on_request() -> None:
    fabric = uniform(aggregators=2, ports=4, endpoints=8)
    fabric = replace(fabric, jobs=(Job("four", ("e0", "e1", "e4", "e5")),))
    made = plan_regroup(fabric, Limits())
    assert made.running_moves == 2
    with pytest.raises(BatchError, match="four would take 4") as caught:
        cut_into_batches(fabric, made.moves, 3)
    assert caught.value.needed == 4
    found = cut_into_batches(fabric, made.moves, 3, max_pauses=2)
    verify(fabric, made, found, 3, max_pauses=2)
    assert (len(found.batches), found.pauses) == (2, {"four": 2})


def test_a_job_makes_way_on_a_free_port_if_it_may_be_paused_twice() -> None:
    fabric = line("as0", "as1", aggregators=3)
    fabric = replace(fabric, jobs=(Job("a", ("e0",)), Job("b", ("e1",))))
    made = by_hand(fabric, ("as1", "as0"))
    with pytest.raises(BatchError, match="a, b would take 2"):
        cut_into_batches(fabric, made.moves, 1)
    found = cut_into_batches(fabric, made.moves, 1, max_pauses=2)
    verify(fabric, made, found, 1, max_pauses=2)
    assert (len(found.batches), found.pauses) == (3, {"a": 2, "b": 1})


def test_a_knot_that_two_pauses_do_not_cut_is_refused() -> None:
    """Both jobs move two endpoints each: with one dark at a time that takes three pauses."""
    fabric = line("as0", "as0", "as1", "as1", ports=2, aggregators=3)
    fabric = replace(fabric, jobs=(Job("a", ("e0", "e1")), Job("b", ("e2", "e3"))))
    made = by_hand(fabric, ("as1", "as1", "as0", "as0"))
    with pytest.raises(BatchError, match="at most 1 endpoints dark"):
        cut_into_batches(fabric, made.moves, 1, max_pauses=2)


def test_parked_idle_endpoints_cut_a_knot_and_light_up_at_the_end() -> None:
    """Two of a job take the ports of two idle ones: four dark at once, or two and two."""
    fabric = line("as0", "as1", "as2", "as2", ports=2, aggregators=3)
    fabric = replace(fabric, jobs=(Job("pair", ("e0", "e1")),))
    made = by_hand(fabric, ("as2", "as2", "as0", "as1"))
    with pytest.raises(BatchError, match="pair would take 4"):
        cut_into_batches(fabric, made.moves, 2)
    found = cut_into_batches(fabric, made.moves, 2, park=True)
    verify(fabric, made, found, 2, max_pauses=1, park=True)
    assert [{m.target for m in batch} for batch in found.batches] == [{None}, {"as2"}, {"as0"}]
    assert found.pauses == {"pair": 1}


def test_a_job_is_paused_once_where_no_knot_is_in_the_way() -> None:
    fabric = line("as0", "as1", "as2")
    fabric = replace(fabric, jobs=tuple(Job(f"j{i}", (f"e{i}",)) for i in range(3)))
    made = by_hand(fabric, ("as1", "as2", "as3"))
    found = cut_into_batches(fabric, made.moves, 1, max_pauses=3, park=True)
    assert found.pauses == {"j0": 1, "j1": 1, "j2": 1}


def test_empty_plans_and_invalid_bounds() -> None:
    fabric = paper(*CASE_A)
    made = plan_regroup(fabric, Limits())
    assert cut_into_batches(fabric, (), 1) == Batches((), all_homes(fabric), 0)
    with pytest.raises(ValueError, match="1 or more"):
        cut_into_batches(fabric, made.moves, 0)
    with pytest.raises(ValueError, match="max_pauses is 0"):
        cut_into_batches(fabric, made.moves, 1, max_pauses=0)


@given(st.lists(st.integers(1, 10), max_size=7), st.integers(10, 14))
def test_least_batches_is_a_bound(sizes: list[int], room: int) -> None:
    bins: list[int] = []
    for size in sorted(sizes, reverse=True):
        fitting = next((i for i, used in enumerate(bins) if used + size <= room), None)
        if fitting is None:
            bins.append(size)
        else:
            bins[fitting] += size
    assert -(-sum(sizes) // room) <= least_batches(sizes, room) <= len(bins)
    assert least_batches([6, 6, 6, 4], 10) == 3
    assert least_batches([], 10) == 0
