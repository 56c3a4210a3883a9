"""Places by fragmentation gradient descent (Weng et al., "Beware of Fragmentation", ATC'23).

A node's fragmentation is the number of its GPUs that a task drawn from the workload cannot use; a
task goes to the node whose fragmentation grows least. Aggregators stand for nodes and jobs for
tasks. The paper's tasks fit into one node; a job that does not fit under one aggregator takes
all idle endpoints of those with most of them, which leaves none to be fragmented.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from scheduler.sim.cluster import Cluster, Live, ReplayRegroup, ReplayStart
from scheduler.sim.rivals.leaves import first_idle, idle_by_aggregator, widest_first
from scheduler.sim.trace import TraceJob


class GradientDescent:
    """Steepest descent of the expected fragmentation."""

    name = "fgd"

    def __init__(self, popularity: Mapping[int, float]) -> None:
        """``popularity`` is the share of the jobs by size."""
        self._popularity = dict(popularity)
        self._known: dict[int, float] = {}

    @staticmethod
    def of_workload(sizes: Sequence[int]) -> GradientDescent:
        """Count the popularity of sizes in a workload, as the paper does."""
        counts = Counter(sizes)
        return GradientDescent({size: n / len(sizes) for size, n in counts.items()})

    def fragmentation(self, free: int) -> float:
        """Return the expected number of ``free`` endpoints that a job cannot use."""
        known = self._known.get(free)
        if known is None:
            unusable = sum(share for size, share in self._popularity.items() if size > free)
            known = self._known[free] = free * unusable
        return known

    def start(self, cluster: Cluster, job: TraceJob) -> ReplayStart | None:
        """Place where fragmentation grows least, of equal ones under the tightest aggregator."""
        free, count = idle_by_aggregator(cluster), job.gpus
        if sum(free) < count:
            return None
        best = min(
            (n for n in set(free) if n >= count),
            key=lambda n: (self.fragmentation(n - count) - self.fragmentation(n), n),
            default=None,
        )
        parts = widest_first(free, count) if best is None else [(free.index(best), count)]
        index = cluster.index
        return ReplayStart(tuple(n for a, part in parts for n in first_idle(index, a, part)))

    def ended(self, cluster: Cluster, live: Live) -> None:
        """Keep no state."""

    def improve(self, cluster: Cluster) -> Iterable[ReplayRegroup]:
        """Never re-place a running job."""
        del cluster
        return ()
