"""Small sites and traces to replay, and the invariants after every event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from scheduler.model import Aggregator, Endpoint, Site
from scheduler.placement.index import DARK
from scheduler.sim.cluster import Cluster
from scheduler.sim.gavel import GavelTable
from scheduler.sim.trace import Trace, TraceJob


def site(aggregators: int = 4, ports: int = 4, switches: int = 1) -> Site:
    """Return a site whose aggregators are full; endpoints go round the switches."""
    return Site(
        "small",
        tuple(
            Endpoint(f"e{i}", ocs=f"ocs{i % switches}", server=f"srv{i // 2}")
            for i in range(aggregators * ports)
        ),
        tuple(
            Aggregator(f"as{a}", {f"ocs{k}": ports // switches for k in range(switches)})
            for a in range(aggregators)
        ),
    )


def trace(*jobs: tuple[float, int, float]) -> Trace:
    """Return a trace of (submit, GPUs, duration)."""
    return Trace.of(
        "inline",
        [TraceJob(f"j{i}", s, g, d, line=i + 1) for i, (s, g, d) in enumerate(jobs)],
    )


def table(ratio: float = 2.0, sizes: Sequence[int] = (1, 2, 4, 8)) -> GavelTable:
    """Return a table in which scattering always costs the same."""
    together = {("net", n): 10.0 for n in sizes}
    return GavelTable(together, {key: rate / ratio for key, rate in together.items()})


def consistent(cluster: Cluster) -> None:
    """Check that no port or endpoint is used twice, and that engine and index agree."""
    index = cluster.index
    used = Counter(name for live in cluster.live.values() for name in live.endpoints)
    assert all(n == 1 for n in used.values())
    assert len(used) <= index.size
    assert set(index.jobs) == set(cluster.live)
    for name, live in cluster.live.items():
        assert index.jobs[name].endpoints == live.endpoints
        assert len(live.endpoints) == live.job.gpus
        assert live.excess >= index.excess(name)
        assert (index.excess(name) > 0) == (name in cluster.scattered)
        assert live.slowdown >= 1.0
    lit: Counter[tuple[int, int]] = Counter()
    for e, a in enumerate(index.home):
        if a != DARK and index.slot[e] != index.fixed_slot:
            lit[a, index.slot[e]] += 1
    assert all(n <= index.ports[slot] for slot, n in lit.items())


class NoSlowdown:
    """Scattering costs nothing, as in scheduling papers without a network model."""

    def moved(self, job: TraceJob, places: Mapping[int, int], excess: int) -> Mapping[str, float]:
        """Return no change."""
        del job, places, excess
        return {}

    def gone(self, job: TraceJob) -> Mapping[str, float]:
        """Return no change."""
        del job
        return {}


FIGURES = [
    *("trace", "policy", "endpoints", "jobs", "makespan_s", "jct_mean_s", "jct_p50_s"),
    *("jct_p99_s", "jct_gpu_time_weighted_s", "queue_mean_s", "utilisation"),
    *("effective_utilisation", "locality_time", "excess_span_mean", "regroups"),
    *("running_moves", "pauses_per_job_hour", "replay_s", "jobs_per_s"),
]
