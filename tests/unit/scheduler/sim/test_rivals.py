"""Other schedulers' policies follow their papers; none has less excess than a regroup."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.metrics import total_excess_span
from scheduler.model import Job, Limits
from scheduler.regroup.one_job import consolidate
from scheduler.regroup.plan import plan_regroup
from scheduler.sim.cluster import Cluster, Live, ReplaySettings, ReplayStart, empty_cluster
from scheduler.sim.engine import ReplayPolicy
from scheduler.sim.policies import POLICIES, make_policy
from scheduler.sim.rivals.fgd import GradientDescent
from scheduler.sim.rivals.hived import BuddyCells
from scheduler.sim.rivals.leaves import widest_first
from scheduler.sim.slowdown import GavelSlowdown
from scheduler.sim.trace import TraceJob
from tests.unit.scheduler.sim.small import site, table, trace

RIVALS = [name for name in POLICIES if name != "regroup"]


class Floor:
    """A cluster on which the test starts and ends jobs."""

    def __init__(self, policy: ReplayPolicy, aggregators: int = 4, ports: int = 4) -> None:
        self.policy = policy
        where = site(aggregators, ports)
        self.cluster: Cluster = empty_cluster(where, ReplaySettings(), GavelSlowdown(table()))

    def start(self, name: str, count: int) -> ReplayStart | None:
        job = TraceJob(name, 0.0, count, 1.0)
        made = self.policy.start(self.cluster, job)
        if made is None:
            return None
        index = self.cluster.index
        for restart in made.restarts:
            index.finish(restart.job)
        for restart in made.restarts:
            index.start(Job(restart.job, restart.endpoints))
            self.cluster.live[restart.job].endpoints = restart.endpoints
        index.start(Job(name, made.endpoints), made.moves)
        self.cluster.live[name] = Live(job, made.endpoints, -1e9, 1.0, 0.0, 0.0, 0.0)
        return made

    def end(self, name: str) -> None:
        live = self.cluster.live.pop(name)
        self.cluster.index.finish(name)
        self.policy.ended(self.cluster, live)

    @property
    def excess(self) -> int:
        return self.cluster.index.total_excess


steps = st.lists(
    st.tuples(st.booleans(), st.sampled_from([1, 1, 2, 3, 4, 5])), min_size=1, max_size=25
)


@pytest.mark.parametrize("rival", RIVALS)
@settings(max_examples=25)
@given(steps)
def test_no_rival_ends_with_less_excess_than_a_regroup(
    rival: str, steps: list[tuple[bool, int]]
) -> None:
    """After the same starts and ends, a regroup has at most the other policy's excess span."""
    workload = trace(*((0.0, size, 1.0) for _, size in steps))
    theirs, ours = (Floor(make_policy(name, workload)) for name in (rival, "regroup"))
    running: list[str] = []
    for i, (ends, size) in enumerate(steps):
        if ends and running:
            name = running.pop(size % len(running))
            theirs.end(name)
            ours.end(name)
        elif theirs.start(f"j{i}", size) is not None:
            assert ours.start(f"j{i}", size) is not None
            running.append(f"j{i}")
    fabric = ours.cluster.index.snapshot()
    found = plan_regroup(fabric, Limits(time_limit_s=5.0))
    assert found.excess_span_after <= theirs.excess


@settings(max_examples=60)
@given(steps, st.sampled_from([1, 2]))
def test_a_consolidation_helps_its_job_and_harms_no_other(
    steps: list[tuple[bool, int]], switches: int
) -> None:
    floor = Floor(make_policy("slurm-tree", trace((0, 1, 1))))
    floor.cluster = empty_cluster(site(4, 4, switches), ReplaySettings(), GavelSlowdown(table()))
    index = floor.cluster.index
    running: list[str] = []
    for i, (ends, size) in enumerate(steps):
        if ends and running:
            floor.end(running.pop(size % len(running)))
        elif floor.start(f"j{i}", size) is not None:
            running.append(f"j{i}")
    for name in running:
        if index.excess(name) == 0:
            continue
        before = {other: index.excess(other) for other in running}
        spared = running[0]
        found = consolidate(index, name, lambda other, spared=spared: other != spared)
        if found is None:
            continue
        moved = {index.owner[index.number[move.endpoint]] for move in found.moves}
        assert moved - {None, name} == set(found.others)
        assert spared not in found.others
        index.rehome(found.moves)
        assert (index.lit <= index.ports).all()
        assert index.excess(name) == 0
        assert all(index.excess(other) <= before[other] for other in running)
    site_now = index.snapshot()
    assert index.total_excess == total_excess_span(site_now, site_now.homes)


def test_slurm_takes_the_smallest_sufficient_leaf_else_the_largest() -> None:
    assert widest_first([4, 2, 3], 2) == [(1, 2)]
    assert widest_first([4, 2, 3], 6) == [(0, 4), (1, 2)]
    assert widest_first([4, 2, 3], 9) == [(0, 4), (2, 3), (1, 2)]


def test_the_gradient_spares_aggregators_that_common_jobs_fit() -> None:
    """Jobs of 4 are common: a job of 1 goes where 4 do not fit."""
    policy = GradientDescent({1: 0.5, 4: 0.5})
    assert policy.fragmentation(3) == 1.5
    assert policy.fragmentation(4) == 0
    floor = Floor(policy)
    floor.start("a", 1)
    made = floor.start("b", 1)
    assert made is not None
    assert floor.cluster.places(made.endpoints) == {0: 1}


def test_buddies_split_trim_and_merge() -> None:
    policy = BuddyCells()
    floor = Floor(policy, aggregators=1, ports=8)
    assert floor.start("three", 3) is not None  # a cell of 4, of which one is free again
    assert floor.start("one", 1) is not None
    made = floor.start("four", 4)
    assert made is not None
    assert made.endpoints == ("e4", "e5", "e6", "e7")
    floor.end("three")
    assert floor.start("again", 4) is None  # 3 free: no cell of 4
    for name in ("one", "four"):
        floor.end(name)
    whole = floor.start("whole", 8)
    assert whole is not None
    assert len(set(whole.endpoints)) == 8


def test_consolidation_evicts_fewest_and_lets_them_fit() -> None:
    floor = Floor(make_policy("evict-restart", trace((0, 1, 1))), aggregators=2, ports=4)
    for i in range(8):
        floor.start(f"j{i}", 1)
    for i in (0, 4, 5):
        floor.end(f"j{i}")
    made = floor.start("wide", 3)
    assert made is not None
    assert [restart.endpoints for restart in made.restarts] == [("e0",)]
    assert floor.cluster.places(made.endpoints) == {1: 3}
    assert floor.excess == 0


def test_consolidation_spares_jobs_in_cool_down() -> None:
    floor = Floor(make_policy("evict-restart", trace((0, 1, 1))), aggregators=2, ports=4)
    for i in range(8):
        floor.start(f"j{i}", 1)
    for live in floor.cluster.live.values():
        live.left_alone_until = 1e9
    for i in (0, 4, 5):
        floor.end(f"j{i}")
    made = floor.start("wide", 3)
    assert made is not None
    assert made.restarts == ()
    assert floor.excess == 1
