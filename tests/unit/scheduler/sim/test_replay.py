"""Invariants of every replay, and the metrics on traces small enough to check by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model import Aggregator, Endpoint, Site
from scheduler.sim.cluster import Cluster, ReplaySettings, ReplayStart
from scheduler.sim.engine import Replay, replay
from scheduler.sim.policies import POLICIES, BestFit, make_policy
from scheduler.sim.slowdown import GavelSlowdown, ModelSlowdown, Slowdown
from scheduler.sim.trace import Trace, TraceError, TraceJob
from tests.unit.scheduler.sim.small import FIGURES, NoSlowdown, consistent, site, table, trace

QUICK = ReplaySettings(pause_s=1.0, restart_s=5.0, checkpoint_s=7.0, cooldown_s=20.0, retry_s=2.0)

workloads = st.lists(
    st.tuples(
        st.integers(0, 60),
        st.sampled_from([1, 1, 1, 2, 2, 3, 4, 4, 6, 8]),
        st.integers(1, 40),
    ),
    min_size=1,
    max_size=40,
).map(lambda rows: trace(*((float(s), g, float(d)) for s, g, d in rows)))


def run(
    workload: Trace,
    policy: str,
    cost: Slowdown | None = None,
    where: Site | None = None,
    assume: ReplaySettings = QUICK,
) -> Replay:
    return replay(
        workload,
        where or site(),
        make_policy(policy, workload),
        cost or GavelSlowdown(table()),
        assume,
        watch=consistent,
    )


@pytest.mark.parametrize("switches", [1, 2])
@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=15)
@given(workload=workloads)
def test_every_replay_adds_up(policy: str, switches: int, workload: Trace) -> None:
    where = site(4, 4, switches)
    for cost in (GavelSlowdown(table()), ModelSlowdown.of(where, {j.gpus for j in workload.jobs})):
        found = run(workload, policy, cost, where)
        assert len(found.ended) == len(workload.jobs)
        for job in found.ended:
            assert job.started >= job.submitted
            assert job.finished - job.started >= job.duration_s * (1 - 1e-9)
        asked = sum(j.gpus * j.duration_s for j in workload.jobs)
        ran = sum(j.gpus * (j.finished - j.started) for j in found.ended)
        assert found.totals.work == pytest.approx(asked)
        assert found.totals.busy == pytest.approx(ran)
        assert 0 <= found.report.effective_utilisation <= found.report.utilisation + 1e-9
        assert found.report.utilisation <= 1 + 1e-9
        assert 0 <= found.report.locality_time <= 1 + 1e-9


def test_a_job_that_no_regroup_can_bring_together_is_slow_and_not_local() -> None:
    """Two of its endpoints are on one switch of which an aggregator has one port."""
    workload = trace(
        (0.0, 1, 1000.0), (0.0, 1, 10.0), (0.0, 1, 1000.0), (0.0, 1, 10.0), (20.0, 2, 10.0)
    )
    where = site(2, 2, 2)
    slow = GavelSlowdown(table(2.0))

    class First(BestFit):
        """Takes the first idle endpoints: e0 and e2 are on ocs0, e1 and e3 on ocs1."""

        def start(self, cluster: Cluster, job: TraceJob) -> ReplayStart | None:
            order = {"j0": "e1", "j1": "e0", "j2": "e3", "j3": "e2"}
            return ReplayStart((order[job.name],) if job.name in order else ("e0", "e2"))

    found = replay(workload, where, First(), slow, QUICK)
    (pair,) = [job for job in found.ended if job.gpus == 2]
    assert pair.finished - pair.started == pytest.approx(20.0)
    assert found.report.locality_time == 0.0
    assert found.totals.excess_seconds == pytest.approx(20.0)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=5)
@given(workload=workloads)
def test_equal_input_equal_result(policy: str, workload: Trace) -> None:
    first, second = run(workload, policy), run(workload, policy)
    assert (first.ended, first.report) == (second.ended, second.report)


@settings(max_examples=25)
@given(workload=workloads)
def test_scattering_that_costs_nothing_makes_the_trivial_queue(workload: Trace) -> None:
    """Without slowdown, best fit, Slurm, FGD and regroup differ only in locality."""
    ends = [
        sorted((job.name, job.finished) for job in run(workload, policy, NoSlowdown()).ended)
        for policy in ("fifo-bestfit", "slurm-tree", "fgd")
    ]
    assert ends[0] == ends[1] == ends[2]


def test_metrics_by_hand() -> None:
    """Two jobs of 2 on 2 endpoints: the second waits for the first."""
    found = run(trace((0, 2, 10), (4, 2, 20)), "slurm-tree", where=site(1, 2)).report
    assert list(found.document()) == FIGURES
    assert (found.jobs, found.endpoints, found.makespan_s) == (2, 2, 30)
    assert found.jct_mean_s == (10 + 26) / 2
    assert found.jct_gpu_time_weighted_s == pytest.approx((20 * 10 + 40 * 26) / 60)
    assert found.queue_mean_s == 3
    assert found.utilisation == found.effective_utilisation == 1.0
    assert (found.locality_time, found.excess_span_mean, found.pauses_per_job_hour) == (1, 0, 0)


def checkerboard(last: int) -> Trace:
    """Fill two aggregators of 2; when the short jobs end, one endpoint is idle on each."""
    return trace((0, 1, 10), (0, 1, 100), (0, 1, 10), (0, 1, 100), (20, last, 40))


def test_a_scattered_job_pays() -> None:
    found = run(checkerboard(2), "slurm-tree", where=site(2, 2))
    last = next(job for job in found.ended if job.name == "j4")
    assert last.finished - last.started == 80  # twice as slow
    assert found.report.locality_time == 0.0
    assert found.report.excess_span_mean == pytest.approx(80 / 100)


def test_regroup_pauses_only_displaced_jobs() -> None:
    found = run(checkerboard(2), "regroup", where=site(2, 2))
    ran = {job.name: job.finished - job.started for job in found.ended}
    assert ran["j4"] == 40
    assert sorted((ran["j1"], ran["j3"])) == [100, 101]  # one pause of 1 s
    assert (found.report.regroups, found.report.running_moves) == (1, 1)
    assert found.report.locality_time == 1.0


def test_eviction_costs_restart_and_lost_work() -> None:
    found = run(checkerboard(2), "evict-restart", where=site(2, 2))
    ran = {job.name: job.finished - job.started for job in found.ended}
    assert ran["j4"] == 40
    # It ran 20 s with checkpoints every 7 s: 6 s again, and 5 s of restart.
    assert sorted((ran["j1"], ran["j3"])) == [100, 111]


def test_buddy_cells_wait_for_a_cell() -> None:
    found = run(checkerboard(2), "hived", where=site(2, 2))
    last = next(job for job in found.ended if job.name == "j4")
    assert last.started == 100  # two endpoints are idle from 10 s on, but no cell of 2
    assert found.report.locality_time == 1.0


def test_cooldown_spares_paused_jobs() -> None:
    jobs = ((0, 1, 10), (0, 1, 500), (0, 1, 10), (0, 1, 500), (20, 2, 10), (35, 2, 10))
    found = run(trace(*jobs), "regroup", where=site(2, 2))
    ran = {job.name: job.finished - job.started for job in found.ended}
    assert ran["j1"] + ran["j3"] <= 1000 + 2


def test_a_regroup_that_does_not_pay_is_not_made() -> None:
    assume = ReplaySettings(pause_s=1000.0)
    found = run(checkerboard(2), "regroup", where=site(2, 2), assume=assume)
    assert found.report.regroups == 0


def test_the_model_slows_jobs_that_share_an_uplink() -> None:
    cost = ModelSlowdown({0: 2, 1: 2, 2: 2}, {2: 1}, oversubscription=4.0)
    jobs = trace((0, 2, 1), (0, 2, 1), (0, 2, 1)).jobs
    alone = cost.moved(jobs[0], {0: 1, 1: 1}, 1)
    assert alone["j0"] > 1
    both = cost.moved(jobs[1], {0: 1, 1: 1}, 1)
    assert both["j0"] == both["j1"] > alone["j0"]
    apart = cost.moved(jobs[1], {2: 2}, 0)
    assert apart == {"j0": alone["j0"], "j1": 1.0}
    assert cost.gone(jobs[0]) == {}


def test_jobs_larger_than_the_site_are_refused() -> None:
    with pytest.raises(TraceError, match="inline:2: job j1 asks for 17 endpoints, the site has 16"):
        run(trace((0, 1, 1), (0, 17, 1)), "regroup")


def test_a_policy_that_never_starts_a_job_is_reported() -> None:
    """No existing policy does that; one that does must not hang or lose jobs."""

    class Never(BestFit):
        def start(self, cluster: Cluster, job: TraceJob) -> ReplayStart | None:
            del cluster, job
            return None

    with pytest.raises(TraceError, match="never starts job j0"):
        replay(trace((0, 1, 1)), site(), Never(), NoSlowdown())


def test_fixed_endpoints_and_odd_cells() -> None:
    """Hard-wired endpoints take part; every policy still finishes every job."""
    where = Site(
        "mixed",
        (
            *(Endpoint(f"e{i}", ocs="ocs0") for i in range(5)),
            *(Endpoint(f"f{i}", fixed=f"as{i % 2}") for i in range(4)),
        ),
        (Aggregator("as0", {"ocs0": 3}, 2), Aggregator("as1", {"ocs0": 3}, 2)),
    )
    workload = trace(*((float(i), 1 + i % 7, 9.0) for i in range(30)), (40.0, 9, 5.0))
    for policy in POLICIES:
        assert len(run(workload, policy, where=where).ended) == 31


def test_replay_speed_is_reported() -> None:
    ticks = iter((10.0, 12.0))
    workload = trace((0, 1, 1), (1, 1, 1))
    found = replay(
        workload, site(), make_policy("fgd", workload), NoSlowdown(), clock=lambda: next(ticks)
    )
    assert (found.report.replay_s, found.report.jobs_per_s) == (2.0, 1.0)


def test_unknown_policy() -> None:
    with pytest.raises(ValueError, match="no policy best"):
        make_policy("best", trace((0, 1, 1)))
