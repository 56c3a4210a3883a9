"""The simulator's queue decides like the production queue, job by job and endpoint by endpoint.

Replays keep jobs in a simple queue, as every policy is replayed first come, first served. These
tests send the same events to the production queue, with backfill and fair share off.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model import Locality, Request
from scheduler.queue.decide import Queue
from scheduler.queue.model import Pending, QueuePolicy
from scheduler.sim.cluster import Cluster, ReplayRegroup, ReplaySettings, empty_cluster
from scheduler.sim.engine import replay
from scheduler.sim.policies import BestFit, LightRegroup
from scheduler.sim.trace import Trace, TraceJob
from tests.unit.scheduler.racks import uniform
from tests.unit.scheduler.sim.small import NoSlowdown

Starts = dict[str, tuple[float, tuple[str, ...]]]


class Stays(LightRegroup):
    """The project's policy without moves of running jobs: only starts count."""

    def improve(self, cluster: Cluster) -> Iterator[ReplayRegroup]:
        del cluster
        return iter(())


POLICIES = {Locality.PREFERRED: BestFit, Locality.REGROUP: Stays}


def simulated(trace: Trace, locality: Locality, switches: int) -> Starts:
    found: Starts = {}

    def watch(cluster: Cluster) -> None:
        for name, live in cluster.live.items():
            found.setdefault(name, (live.started, live.endpoints))

    replay(trace, uniform(3, 4, 12, switches).site, POLICIES[locality](), NoSlowdown(), watch=watch)
    return found


def produced(trace: Trace, locality: Locality, switches: int) -> Starts:
    index = empty_cluster(uniform(3, 4, 12, switches).site, ReplaySettings(), NoSlowdown()).index
    queue = Queue(index, QueuePolicy(fair_share=False, backfill=False))
    length = {job.name: job.duration_s for job in trace.jobs}
    ends: list[tuple[float, str]] = []
    left = list(trace.jobs)
    found: Starts = {}
    while left or ends:
        now = min([job.submit_s for job in left[:1]] + [end for end, _ in ends[:1]])
        while ends and ends[0][0] <= now:
            queue.finish(heapq.heappop(ends)[1])
        while left and left[0].submit_s <= now:
            job = left.pop(0)
            queue.submit(Pending(Request(job.name, job.gpus, locality), job.submit_s))
        for start in queue.decide(now).starts:
            found[start.job] = now, start.placement.endpoints
            heapq.heappush(ends, (now + length[start.job], start.job))
    return found


@pytest.mark.parametrize("switches", [1, 2, 4])
@pytest.mark.parametrize("locality", [Locality.PREFERRED, Locality.REGROUP])
@settings(max_examples=40)
@given(
    jobs=st.lists(
        st.tuples(st.integers(0, 6000), st.integers(1, 12), st.integers(1, 4000)),
        min_size=1,
        max_size=25,
    )
)
def test_every_job_starts_at_the_same_time_on_the_same_endpoints(
    switches: int, locality: Locality, jobs: list[tuple[int, int, int]]
) -> None:
    listed = [
        TraceJob(f"j{i}", float(at), gpus, float(run), line=i + 1)
        for i, (at, gpus, run) in enumerate(jobs)
    ]
    trace = Trace.of("random", listed)
    seen = simulated(trace, locality, switches)
    wanted = produced(trace, locality, switches)
    assert seen.keys() == wanted.keys() == {job.name for job in trace.jobs}
    assert seen == wanted
