"""Plans by loads: prices against every load, bounds against the exact program, sound layouts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.plan_states import scattered
from scheduler.model import Fabric, Job, Limits, Objective, Spread, SpreadBy
from scheduler.regroup.counting import count
from scheduler.regroup.counts import MemberLayout, RegroupProblem
from scheduler.regroup.improve import greedy
from scheduler.regroup.improve.blocks import AggregatorBlock, units_inside
from scheduler.regroup.improve.board import Board
from scheduler.regroup.loads.facts import Facts, Load, applies, facts_of, in_time
from scheduler.regroup.loads.pricing import Prices, price
from scheduler.regroup.loads.search import LoadSearch, Places
from scheduler.regroup.program.exact import Model, Shape
from scheduler.regroup.program.terms import MOVES, PAUSED
from scheduler.regroup.search import Timer
from tests.unit.scheduler.racks import paper

SHAPES = [(3, 4, 1), (4, 4, 2), (3, 6, 2), (3, 6, 3), (4, 2, 1)]
"""Aggregators, ports and switches; with two ports most jobs have several parts."""


def problem_of(seed: int, shape: tuple[int, int, int], load: float = 0.9) -> RegroupProblem:
    aggregators, ports, switches = shape
    fabric = scattered(aggregators, ports, load, "odd", seed, switches=switches)
    return count(fabric, Limits()).problem


problems = st.builds(
    problem_of, st.integers(0, 10_000), st.sampled_from(SHAPES), st.sampled_from([0.7, 0.9, 1.0])
)


def loads(facts: Facts, a: int) -> Iterator[Load]:
    """Yield every load of an aggregator, whether it fits or not."""
    alone = [j for j, _ in facts.kept[a]]
    counts = [range(sum(k == v for k in facts.kind) + 1) for v in range(len(facts.kinds))]
    parts = [
        [None, *((j, tuple(vector)) for vector in of.vectors.tolist())]
        for j, of in facts.parts.items()
    ]
    for chosen in product([False, True], repeat=len(alone)):
        kept = tuple(j for j, taken in zip(alone, chosen, strict=True) if taken)
        for arriving in product(*counts):
            for some in product(*parts):
                yield Load(
                    kept,
                    tuple((v, n) for v, n in enumerate(arriving) if n),
                    tuple(part for part in some if part is not None),
                )


def size_of(facts: Facts, load: Load) -> list[int]:
    vectors = [facts.members[j] for j in load.kept]
    vectors += [n * np.asarray(facts.kinds[v]) for v, n in load.arriving]
    vectors += [np.asarray(vector) for _, vector in load.parts]
    return np.sum([np.zeros(len(facts.sizes.shape), np.int64), *vectors], axis=0).tolist()


def worth(facts: Facts, prices: Prices, a: int, load: Load) -> float:
    """Return what a load is worth, from the definition."""
    size = size_of(facts, load)
    if any(n >= most for n, most in zip(size, facts.sizes.shape, strict=True)):
        return -math.inf
    total = -(prices.moves + prices.paused) * facts.displaced[a, facts.sizes.number(size)]
    moved = dict(facts.kept[a])
    for j in load.kept:
        paused = int(facts.size[j]) if moved[j] else 0
        total += prices.unit[j] - prices.moves * moved[j] - prices.paused * paused
    total += sum(n * prices.arriving[v] for v, n in load.arriving)
    for part in load.parts:
        j, vector = part
        total += prices.part[j] + prices.member[j] @ vector - prices.moves * facts.moves(a, part)
        total += prices.stay.get((j, a), 0.0) if facts.stays(a, part) else 0.0
    return float(total)


@settings(max_examples=60, deadline=None)
@given(problems, st.integers(0, 10_000), st.booleans())
def test_no_load_is_worth_more(problem: RegroupProblem, seed: int, shards: bool) -> None:
    assume(applies(problem) and len(problem.units) <= 4)
    facts = facts_of(problem, shards=shards)
    rng = np.random.default_rng(seed)
    eighths = lambda low, high, *shape: rng.integers(8 * low, 8 * high, shape) / 8.0  # noqa: E731
    stay = {(j, a): 1.0 for a, own in enumerate(facts.large) for j in own if facts.compact[j]}
    prices = Prices(
        unit=eighths(0, 9, len(facts.least)),
        arriving=eighths(0, 5, len(facts.kinds)),
        member=eighths(-1, 3, *facts.members.shape),
        part=eighths(-3, 1, len(facts.least)) if shards else -eighths(0, 3, len(facts.least)),
        stay=stay,
        moves=float(shards),
        paused=float(eighths(0, 2)),
    )
    for a, found in enumerate(price(facts, prices, 3)):
        best = max((worth(facts, prices, a, load) for load in loads(facts, a)), default=0.0)
        priced = found[0].worth if found else 0.0
        assert priced >= best - 1e-6
        if not facts.parts:
            assert priced == pytest.approx(max(best, 0.0))
        assert [one.worth for one in found] == sorted((one.worth for one in found), reverse=True)
        for one in found:
            size = size_of(facts, one.load)
            assert np.isfinite(facts.displaced[a, facts.sizes.number(size)])
            if not facts.parts:  # a smaller load than its size may displace fewer
                assert one.worth <= worth(facts, prices, a, one.load) + 1e-6


CLOCK = Timer(600.0, None)


def layout_of(places: Places) -> MemberLayout | None:
    whole = [place for place in places if place is not None]
    if len(whole) < len(places):
        return None
    return MemberLayout([lit for lit, _ in whole], [dark for _, dark in whole])


@settings(max_examples=60, deadline=None)
@given(problems, st.permutations([MOVES, PAUSED]))
def test_bounds_hold_and_layouts_are_sound(problem: RegroupProblem, order: list[str]) -> None:
    """Against the program by units and slots; the second criterion at the least first one."""
    assume(applies(problem))
    start, rng = greedy.best_board(problem).layout, np.random.default_rng(1)
    caps: dict[str, float] = {}
    model = Model(problem, Shape(counts=True))
    for criterion in order:
        exact = model.minimise(criterion, None, 60.0)
        assume(exact.layout is not None)
        least = math.ceil(exact.bound - 1e-6)
        search = LoadSearch(problem, criterion, caps, Timer(60.0, None), 8)
        search.start(start)
        search.generate(60.0, steady=True)
        assert search.bound <= least
        search.generate(60.0)
        assert search.bound <= least
        for places in (search.rounded(), search.rounded(rng), search.choose(10.0)):
            layout = None if places is None else layout_of(places)
            if layout is not None:
                cost = problem.cost(layout)
                value = {MOVES: cost.moves, PAUSED: cost.paused}
                assert problem.allows(layout)
                assert cost.excess == 0
                assert any(value[c] > cap for c, cap in caps.items()) or value[criterion] >= least
        caps[criterion] = least
        model.at_most(criterion, least)


@settings(max_examples=100, deadline=None)
@given(problems, st.integers(0, 10_000), st.permutations([MOVES, PAUSED]))
def test_other_endpoints_may_hold_the_ports(
    problem: RegroupProblem, seed: int, order: list[str]
) -> None:
    """Pinned and quarantined endpoints hold ports, also where members were before."""
    rng = np.random.default_rng(seed)
    room = np.maximum(problem.room - rng.integers(0, 3, len(problem.room)), 0)
    problem = replace(problem, room=room, single=np.minimum(problem.single, room))
    assume(applies(problem))
    search = LoadSearch(problem, order[0], {order[1]: float(rng.integers(0, 20))}, CLOCK, 8)
    search.start(MemberLayout([{} for _ in problem.units], [{} for _ in problem.units]))
    search.generate(60.0)
    for places in (search.rounded(), search.rounded(rng), search.choose(10.0) or []):
        used = problem.used(MemberLayout([place[0] for place in places if place is not None], []))
        assert (used <= room).all()


def test_the_bound_is_the_optimum_where_parts_do_not_tell() -> None:
    """Seven of sixteen ports: two a load, which the relaxation by places does not know."""
    problem = count(scattered(16, 16, 1.0, "odd", 1), Limits()).problem
    search = LoadSearch(problem, MOVES, {}, Timer(60.0, None), 4)
    search.start(problem.start)
    search.generate(60.0)
    relaxed = Model(problem, Shape()).relax(MOVES, 60.0)
    assert search.bound > relaxed.bound + 1
    board = greedy.best_board(problem)
    found = layout_of(search.choose(60.0) or [None])
    assert found is not None
    assert search.bound <= problem.cost(found).moves < problem.cost(board.layout).moves


@settings(max_examples=40, deadline=None)
@given(problems, st.integers(0, 1_000), st.sampled_from([MOVES, PAUSED]))
def test_a_block_is_never_worse(problem: RegroupProblem, seed: int, criterion: str) -> None:
    objective = Objective.MOVES if criterion == MOVES else Objective.PAUSES
    problem = replace(problem, limits=Limits(objective=objective))
    board = greedy.best_board(problem)
    before = board.key
    rng = np.random.default_rng(seed)
    around = sorted(rng.permutation(problem.aggregators)[:3].tolist())
    block = AggregatorBlock(board, around, units_inside(board, around))
    assume(applies(block.problem))
    better = block.reload(criterion, (), Timer(10.0, None))
    assert (board.key < before) == better
    assert problem.allows(board.layout)
    assert board.key == Board(problem, board.layout).key


@pytest.mark.parametrize(
    "changed",
    [
        {"pinned": True},
        {"spread": Spread(SpreadBy.AGGREGATOR, 1)},
    ],
)
def test_loads_do_not_apply_to_jobs_that_are_not_free(changed: dict[str, object]) -> None:
    free = paper(Job("red", ("gpu0", "gpu2")), Job("blue", ("gpu4", "gpu5")))
    assert applies(count(free, Limits()).problem)
    red = replace(free.jobs[0], **changed)
    problem = count(replace(free, jobs=(red, free.jobs[1])), Limits()).problem
    assert not applies(problem) or all(u.job != 0 for u in problem.units)


def test_a_job_without_weight_or_with_a_dark_member_is_not_covered() -> None:
    fabric: Fabric = paper(Job("red", ("gpu0", "gpu2")), Job("blue", ("gpu4", "gpu5")))
    assert not applies(count(fabric, Limits(only_job="red")).problem)
    dark = replace(fabric, homes={**fabric.homes, "gpu2": None})
    assert not applies(count(dark, Limits()).problem)


def test_a_large_site_needs_time() -> None:
    problem = problem_of(1, (3, 4, 1))
    assert in_time(problem, 1.0)
    assert not in_time(problem, 1e-6)
    assert not in_time(replace(problem, units=()), 1.0)
