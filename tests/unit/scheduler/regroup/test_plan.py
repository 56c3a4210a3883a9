"""Regroup plans: the paper's cases, budgets, bounds, and the optimum of small fabrics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count as count_ticks

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.plan_states import scattered
from scheduler.model import Aggregator, Endpoint, Fabric, Job, Limits, Objective, Plan, Site
from scheduler.occupancy import FabricError, all_homes, check
from scheduler.regroup.counting import count
from scheduler.regroup.plan import DARK_TIME_S, plan_regroup
from scheduler.regroup.program.exact import Model, Shape
from scheduler.regroup.program.terms import EXCESS, MOVES, PAUSED
from tests.unit.scheduler import brute
from tests.unit.scheduler.racks import (
    CASE_A,
    CASE_B,
    PAPER_HOMES,
    RED,
    crowded,
    fabrics,
    paper,
    small_switched,
    uniform,
)

limits = st.builds(
    Limits,
    objective=st.sampled_from(Objective),
    max_jobs_paused=st.sampled_from([None, None, 0, 1, 2]),
    max_moves=st.sampled_from([None, None, 0, 1, 2, 3]),
)


def applied(fabric: Fabric, made: Plan) -> Fabric:
    return replace(fabric, homes=dict(made.homes_after))


@pytest.mark.parametrize("objective", list(Objective))
@pytest.mark.parametrize(("jobs", "moves"), [(CASE_A, 3), (CASE_B, 2)])
def test_the_cases_of_the_paper_become_compact(
    jobs: tuple[Job, ...], moves: int, objective: Objective
) -> None:
    made = plan_regroup(paper(*jobs), Limits(objective=objective))
    assert (made.excess_span_before, made.excess_span_after) == (2, 0)
    assert made.running_moves == moves
    assert made.jobs_paused == ("red", "blue")
    assert made.paused_gpus == 6
    assert made.pause_gpu_seconds == pytest.approx(6 * DARK_TIME_S)
    assert made.optimal
    assert (made.bound.excess_span, made.bound.running_moves) == (0.0, float(moves))
    assert made.epoch == 7


def test_the_pause_estimate_is_an_argument() -> None:
    assert plan_regroup(paper(*CASE_A), Limits(), pause_s=2.0).pause_gpu_seconds == pytest.approx(
        12.0
    )


def test_nothing_to_gain_is_an_empty_plan() -> None:
    made = plan_regroup(paper(Job("two", ("gpu0", "gpu1"))), Limits())
    assert made.empty
    assert made.optimal
    assert made.homes_after == PAPER_HOMES
    assert plan_regroup(paper(), Limits()).empty


def test_displaced_idle_endpoints_cost_nothing() -> None:
    fabric = uniform(aggregators=2, ports=2, endpoints=4)
    fabric = replace(fabric, jobs=(Job("two", ("e0", "e2")),))
    made = plan_regroup(fabric, Limits())
    assert (made.excess_span_after, made.running_moves, made.paused_gpus) == (0, 1, 2)
    assert len(made.moves) == 2


def test_a_dark_member_is_lit() -> None:
    homes = dict(PAPER_HOMES) | {"gpu1": None}
    made = plan_regroup(paper(Job("two", ("gpu0", "gpu1")), homes=homes), Limits())
    assert [(m.endpoint, m.source, m.target) for m in made.moves] == [("gpu1", None, "as0")]
    assert (made.running_moves, made.jobs_paused) == (1, ("two",))


def test_a_job_with_one_dark_member_is_left_alone() -> None:
    """It is not lit needlessly, and without a port for it the plan is still proven."""
    site = Site(
        "short",
        tuple(Endpoint(f"e{i}", ocs="ocs0") for i in range(6)),
        (Aggregator("as0", {"ocs0": 3}), Aggregator("as1", {"ocs0": 1})),
    )
    homes = {"e0": "as0", "e1": "as1", "e2": "as0", "e3": "as0"}
    jobs = (Job("two", ("e0", "e1")), Job("x", ("e2",)), Job("y", ("e4",)))
    made = plan_regroup(Fabric(site, homes, jobs), Limits())
    assert (made.excess_span_after, made.optimal) == (0, True)
    assert {m.endpoint for m in made.moves} == {"e1", "e3"}


def test_pauses_and_moves_are_different_plans() -> None:
    """One big job one move away, or two small ones two moves away."""
    site = Site(
        "choice",
        tuple(Endpoint(f"e{i}", ocs="ocs0") for i in range(8)),
        (Aggregator("as0", {"ocs0": 4}), Aggregator("as1", {"ocs0": 4})),
    )
    homes = {f"e{i}": "as0" if i < 4 else "as1" for i in range(8)}
    jobs = (Job("big", ("e0", "e1", "e2")), Job("s1", ("e3", "e4")), Job("s2", ("e5", "e6")))
    fabric = Fabric(site, homes, jobs)
    pauses = plan_regroup(fabric, Limits(objective=Objective.PAUSES))
    moves = plan_regroup(fabric, Limits(objective=Objective.MOVES))
    assert pauses.excess_span_after == moves.excess_span_after == 0
    assert pauses.paused_gpus <= moves.paused_gpus
    assert moves.running_moves <= pauses.running_moves


def test_one_job_alone() -> None:
    fabric = paper(*CASE_A)
    made = plan_regroup(fabric, Limits(only_job="blue", objective=Objective.MOVES))
    assert made.excess_span_after == 1
    assert made.jobs_paused == ("blue",)
    with pytest.raises(ValueError, match="job green does not exist"):
        plan_regroup(fabric, Limits(only_job="green"))


def test_weight_decides_who_becomes_compact() -> None:
    def blue_weight(weight: float) -> Plan:
        blue = Job("blue", ("gpu4", "gpu5"), weight=weight)
        return plan_regroup(paper(RED, blue), Limits(max_jobs_paused=1))

    assert blue_weight(5.0).jobs_paused == ("blue",)
    assert blue_weight(5.0).excess_span_after == 1


def test_without_time_the_greedy_plan_stands() -> None:
    made = plan_regroup(paper(*CASE_A), Limits(time_limit_s=0.0))
    assert made.excess_span_after == 0


def test_the_clock_bounds_the_search() -> None:
    ticks: Iterator[int] = count_ticks()
    made = plan_regroup(paper(*CASE_A), Limits(time_limit_s=0.5), clock=lambda: float(next(ticks)))
    assert made.solver_seconds > 0.5
    assert made.excess_span_after <= made.excess_span_before


@pytest.mark.parametrize(
    ("homes", "jobs", "message"),
    [
        ({"gpu9": "as0"}, (), "endpoint gpu9"),
        ({"gpu0": "as9"}, (), "homed on as9"),
        ({f"gpu{i}": "as0" for i in range(5)}, (), "as0 has 4 ports on ocs0, but 5"),
        ({}, (Job("a", ("gpu9",)),), "job a holds gpu9"),
        ({}, (Job("a", ("gpu0",)), Job("b", ("gpu0",))), "held by a and again by b"),
        ({}, (Job("a", ("gpu0",), weight=-1.0),), "weight -1.0"),
    ],
)
def test_a_fabric_that_contradicts_itself_is_refused(
    homes: dict[str, str], jobs: tuple[Job, ...], message: str
) -> None:
    with pytest.raises(FabricError, match=message):
        plan_regroup(paper(*jobs, homes=homes), Limits())


@settings(max_examples=150)
@given(fabrics() | crowded(most_aggregators=4, ports=4), limits)
def test_every_plan_is_sound(fabric: Fabric, limits: Limits) -> None:
    made = plan_regroup(fabric, replace(limits, time_limit_s=2.0))
    before = all_homes(fabric)
    later = applied(fabric, made)
    check(later)  # ports of every aggregator and switch
    assert brute.fits(fabric, dict(made.homes_after))
    assert brute.apart(fabric, dict(made.homes_after))
    owner = {name: job for job in fabric.jobs for name in job.endpoints}
    moved = {m.endpoint: m for m in made.moves}
    assert list(made.homes_after) == [e.name for e in fabric.site.endpoints]
    for name, home in made.homes_after.items():
        assert (name in moved) == (home != before[name])
        if name in moved:
            assert (moved[name].source, moved[name].target) == (before[name], home)
        if before[name] is not None and name in owner:
            assert home is not None
    for endpoint in fabric.site.endpoints:
        job = owner.get(endpoint.name)
        if endpoint.fixed or endpoint.name in fabric.unavailable or (job and job.pinned):
            assert endpoint.name not in moved
    running = [name for name in moved if name in owner]
    touched = [j for j in fabric.jobs if any(n in moved for n in j.endpoints)]
    assert made.running_moves == len(running)
    assert made.jobs_paused == tuple(j.name for j in touched)
    assert made.paused_gpus == sum(len(j.endpoints) for j in touched)
    assert limits.max_moves is None or len(running) <= limits.max_moves
    assert limits.max_jobs_paused is None or len(touched) <= limits.max_jobs_paused
    excess = [
        sum(j.weight * (brute.places(j, homes) - brute.least(fabric, j)) for j in fabric.jobs)
        for homes in (before, dict(made.homes_after))
    ]
    assert excess[1] <= excess[0]
    assert made.empty or excess[1] < excess[0]
    assert made.bound.excess_span <= made.excess_span_after
    assert made.bound.running_moves <= made.running_moves
    assert made.bound.paused_gpus <= made.paused_gpus
    # Reversible: the old map of homes is reached by undoing the moves.
    undone = dict(made.homes_after) | {m.endpoint: m.source for m in made.moves}
    assert undone == before
    if made.optimal and limits.max_moves is None and limits.max_jobs_paused is None:
        assert plan_regroup(later, limits).empty


@settings(max_examples=80)
@given(fabrics(most_endpoints=6, most_aggregators=3) | crowded(), limits, st.integers(0, 9))
def test_small_plans_are_the_optimum(fabric: Fabric, limits: Limits, only: int) -> None:
    if only < len(fabric.jobs):
        limits = replace(limits, only_job=fabric.jobs[only].name)
    made = plan_regroup(fabric, limits)
    assert made.optimal
    best = brute.optimum(fabric, limits)
    after = dict(made.homes_after)
    assert brute.apart(fabric, after)
    jobs = [j for j in fabric.jobs if limits.only_job in (None, j.name)]
    weight = {j.name: j.weight if limits.only_job is None else 1.0 for j in jobs}
    excess = sum(weight[j.name] * (brute.places(j, after) - brute.least(fabric, j)) for j in jobs)
    second, third = made.paused_gpus, made.running_moves
    if limits.objective is Objective.MOVES:
        second, third = third, second
    key = (excess, second, third, len(made.moves) - made.running_moves)
    assert key == pytest.approx(best)
    assert made.bound.running_moves == made.running_moves
    assert made.bound.paused_gpus == made.paused_gpus


@settings(max_examples=25)
@given(small_switched(), limits)
def test_small_plans_over_several_switches_are_the_optimum(fabric: Fabric, limits: Limits) -> None:
    made = plan_regroup(fabric, limits)
    assert made.optimal
    after = dict(made.homes_after)
    excess = sum(j.weight * (brute.places(j, after) - brute.least(fabric, j)) for j in fabric.jobs)
    second, third = made.paused_gpus, made.running_moves
    if limits.objective is Objective.MOVES:
        second, third = third, second
    key = (excess, second, third, len(made.moves) - made.running_moves)
    assert key == pytest.approx(brute.optimum(fabric, limits))


@settings(max_examples=20)
@given(
    st.integers(0, 10_000),
    st.sampled_from([(4, 4, 1), (3, 6, 1), (3, 4, 2)]),
    st.sampled_from(Objective),
)
def test_parts_and_counts_are_the_same_problem(
    seed: int, shape: tuple[int, int, int], objective: Objective
) -> None:
    """Two formulations of the problem, of which only the second is by units and slots."""
    aggregators, ports, switches = shape
    fabric = scattered(aggregators, ports, 0.9, "odd", seed, switches=switches)
    made = plan_regroup(fabric, Limits(objective=objective))
    assert made.optimal
    problem = count(fabric, Limits(objective=objective)).problem
    model = Model(problem, Shape(compact=False, counts=True))
    order = [EXCESS, PAUSED, MOVES]
    found = [float(made.excess_span_after), made.paused_gpus, made.running_moves]
    if objective is Objective.MOVES:
        order[1:], found[1:] = order[:0:-1], found[:0:-1]
    for criterion, value in zip(order, found, strict=True):
        outcome = model.minimise(criterion, None, 60.0)
        assert outcome.bound == pytest.approx(value, abs=1.0 - 1e-6 if criterion != EXCESS else 0)
        assert outcome.layout is not None
        assert problem.cost(outcome.layout).key(objective)[order.index(criterion)] == value
        model.at_most(criterion, value)


def test_equal_input_equal_plan() -> None:
    fabric = scattered(8, 8, 0.95, "odd", 3)
    first, second = (plan_regroup(fabric, Limits(time_limit_s=60.0)) for _ in range(2))
    assert first == second
    assert first.optimal


@pytest.mark.parametrize("budget", [{"max_moves": 40}, {"max_jobs_paused": 8}])
def test_budgets_on_a_larger_site_are_spent_and_bounded(budget: dict[str, int]) -> None:
    fabric = scattered(16, 8, 0.9, "philly", 5)
    free = plan_regroup(fabric, Limits(time_limit_s=3.0))
    made = plan_regroup(fabric, Limits(time_limit_s=3.0, **budget))
    assert free.excess_span_after < made.excess_span_after < made.excess_span_before
    assert 0 < made.bound.excess_span <= made.excess_span_after
    assert made.running_moves <= budget.get("max_moves", made.running_moves)
    assert len(made.jobs_paused) <= budget.get("max_jobs_paused", len(made.jobs_paused))


def test_no_job_stays_scattered_on_many_full_switches() -> None:
    fabric = scattered(16, 16, 0.95, "philly", 1, switches=4)
    made = plan_regroup(fabric, Limits(time_limit_s=2.0))
    assert made.excess_span_before > 0
    assert made.excess_span_after == 0


def test_a_late_clock_still_gives_a_sound_plan() -> None:
    """At any time limit, in the heuristics or later, the plan is valid."""
    fabric = scattered(16, 8, 0.95, "odd", 2)
    for limit in (1, 5, 20, 80, 200):
        ticks = count_ticks()
        made = plan_regroup(
            fabric, Limits(time_limit_s=float(limit)), clock=lambda t=ticks: float(next(t))
        )
        check(applied(fabric, made))
        assert made.excess_span_after <= made.excess_span_before
        assert made.bound.paused_gpus <= made.paused_gpus
