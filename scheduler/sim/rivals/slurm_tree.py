"""Places as Slurm's topology/tree: under the lowest switch, best fit over its leaves.

After ``_eval_nodes_tree`` of Slurm's select/cons_tres plug-in and slurm.schedmd.com/topology:
a leaf switch is sufficient if its free nodes can hold the rest of the request; a sufficient
leaf beats an insufficient one, among sufficient ones the smallest wins, among insufficient
ones the largest, and leaves are added until the job fits. An aggregator is a leaf switch, an
endpoint a node, and all leaves are under one upper switch. Running jobs are never moved.
"""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.sim.cluster import Cluster, Live, ReplayRegroup, ReplayStart
from scheduler.sim.rivals.leaves import first_idle, idle_by_aggregator, widest_first
from scheduler.sim.trace import TraceJob


class SlurmTree:
    """Best fit over leaf switches."""

    name = "slurm-tree"

    def start(self, cluster: Cluster, job: TraceJob) -> ReplayStart | None:
        """Place on one leaf if one can hold the job, otherwise on few."""
        index, free = cluster.index, idle_by_aggregator(cluster)
        if sum(free) < job.gpus:
            return None
        parts = widest_first(free, job.gpus)
        return ReplayStart(
            tuple(n for leaf, count in parts for n in first_idle(index, leaf, count))
        )

    def ended(self, cluster: Cluster, live: Live) -> None:
        """Keep no state."""

    def improve(self, cluster: Cluster) -> Iterable[ReplayRegroup]:
        """Never re-place a running job."""
        del cluster
        return ()
