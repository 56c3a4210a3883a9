"""Defines the project's policies on the production code, and lists all policies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from scheduler.model import Limits, Locality, Placement, Request
from scheduler.placement.place import place
from scheduler.queue import closer
from scheduler.queue.model import Pending, QueuePolicy
from scheduler.regroup.one_job import consolidate
from scheduler.regroup.plan import plan_regroup
from scheduler.sim.cluster import Cluster, Live, ReplayRegroup, ReplayStart
from scheduler.sim.engine import ReplayPolicy
from scheduler.sim.rivals.evict_restart import EvictRestart
from scheduler.sim.rivals.fgd import GradientDescent
from scheduler.sim.rivals.hived import BuddyCells
from scheduler.sim.rivals.slurm_tree import SlurmTree
from scheduler.sim.trace import Trace, TraceJob

_EXACT_UP_TO = 64
"""Endpoints of a site up to which the exact planner runs if the heuristic finds no moves."""


class BestFit:
    """First come, first served, each job placed by ``scheduler.placement.place`` with best fit."""

    name = "fifo-bestfit"
    locality = Locality.PREFERRED

    def start(self, cluster: Cluster, job: TraceJob) -> ReplayStart | None:
        """Place under as few aggregators as the present homes allow."""
        if job.gpus > cluster.pool.idle:
            return None  # cheaper than a Wait with its reason
        request = Request(job.name, job.gpus, self.locality)
        placed = place(cluster.index, request)
        if not isinstance(placed, Placement) or self.waits(cluster, request, placed):
            return None
        return ReplayStart(placed.endpoints, placed.moves)

    def waits(self, cluster: Cluster, request: Request, placed: Placement) -> bool:
        """Start wherever the job fits."""
        del cluster, request, placed
        return False

    def ended(self, cluster: Cluster, live: Live) -> None:
        """Keep no state."""

    def improve(self, cluster: Cluster) -> Iterable[ReplayRegroup]:
        """Leave running jobs where they are."""
        del cluster
        return ()


class LightRegroup(BestFit):
    """The project's policy: re-homes idle endpoints at placement, running ones when it pays.

    A job that starts scattered is consolidated before its first step, so only displaced jobs
    pause. A job that stays scattered is tried again as others end.
    """

    name = "regroup"
    locality = Locality.REGROUP

    def __init__(self) -> None:
        """Wait for closer endpoints as the production queue does by default."""
        self._queue = QueuePolicy()
        self._waiting = "", 0.0
        """The job that waits for closer endpoints, and since when."""

    def waits(self, cluster: Cluster, request: Request, placed: Placement) -> bool:
        """Return whether a job that fits waits for endpoints that fit together."""
        if not closer.may_come_closer(cluster.index, request, placed):
            return False
        if self._waiting[0] != request.job:
            self._waiting = request.job, cluster.now
        limit_s = closer.longest_wait_s(cluster.index, self._queue, Pending(request, cluster.now))
        return cluster.now < self._waiting[1] + limit_s

    def improve(self, cluster: Cluster) -> Iterator[ReplayRegroup]:
        """Consolidate jobs whose gain exceeds the cost of the pauses, the largest gain first."""
        waiting = [
            live
            for name in cluster.scattered
            if (live := cluster.live[name]).retry_at <= cluster.now and cluster.movable(name)
        ]
        waiting.sort(key=cluster.gain_s, reverse=True)
        for live in waiting:
            name = live.job.name
            if name not in cluster.scattered:
                continue
            state = cluster.state()
            found = None if live.in_vain == state else self._find(cluster, live)
            if found is None:
                live.in_vain = state  # in this state it would fail again
                # The delay grows with the time it has run scattered.
                waited = cluster.now - live.started
                live.retry_at = cluster.now + max(cluster.settings.retry_s, waited / 8)
            else:
                yield found

    def _find(self, cluster: Cluster, live: Live) -> ReplayRegroup | None:
        name = live.job.name
        found = consolidate(cluster.index, name, cluster.movable)
        if found is not None:
            paused = sum(
                len(cluster.index.jobs[other].endpoints)
                for other in found.others
                if not cluster.just_started(other)
            )
            moves = found.moves
        elif cluster.index.size <= _EXACT_UP_TO:
            fabric = cluster.index.snapshot()
            jobs = tuple(replace(job, pinned=not cluster.movable(job.name)) for job in fabric.jobs)
            plan = plan_regroup(replace(fabric, jobs=jobs), Limits(only_job=name, time_limit_s=1.0))
            if plan.excess_span_after >= plan.excess_span_before:
                return None
            names = (n for n in plan.jobs_paused if n != name and not cluster.just_started(n))
            paused = sum(len(cluster.index.jobs[n].endpoints) for n in names)
            moves = plan.moves
        else:
            return None
        if not cluster.just_started(name):
            paused += live.job.gpus
        if paused and cluster.gain_s(live) <= paused * cluster.settings.pause_s:
            return None
        return ReplayRegroup(moves)


POLICIES = ("fifo-bestfit", "slurm-tree", "evict-restart", "hived", "fgd", "regroup")
"""Every policy, by its name for ``--policy``."""


def make_policy(name: str, trace: Trace) -> ReplayPolicy:
    """Return a new policy; FGD counts the popularity of job sizes in the trace.

    Raises ValueError for a name that is not in POLICIES.
    """
    if name == "fgd":
        return GradientDescent.of_workload([job.gpus for job in trace.jobs])
    made: dict[str, type[ReplayPolicy]] = {
        "fifo-bestfit": BestFit,
        "slurm-tree": SlurmTree,
        "evict-restart": EvictRestart,
        "hived": BuddyCells,
        "regroup": LightRegroup,
    }
    if name not in made:
        raise ValueError(f"no policy {name}; known: {', '.join(POLICIES)}")
    return made[name]()
