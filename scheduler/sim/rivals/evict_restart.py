"""Consolidates by eviction, as NVIDIA KAI's scheduler does (kai-scheduler, "consolidation").

If a job does not fit under one aggregator because the idle endpoints are scattered, it simulates
evicting a few running jobs such that the job and all evicted ones fit at once; if they do, it
evicts and restarts them. Endpoints keep their homes: an evicted job loses its work since its last
checkpoint and the time of a restart.

In favour of this policy: evicted jobs restart at once on endpoints kept for them, never on more
aggregators than before, the fewest endpoints are evicted, the same cool-down as in the project's
policy limits repeated evictions, and a job starts scattered if no eviction helps (KAI's
preferred topology) instead of waiting (required).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scheduler.placement.index import FabricIndex
from scheduler.sim.cluster import Cluster, Live, ReplayRegroup, ReplayStart, Restart
from scheduler.sim.rivals.leaves import first_idle, idle_by_aggregator, widest_first
from scheduler.sim.trace import TraceJob


class EvictRestart:
    """Best fit, and eviction if best fit scatters a job."""

    name = "evict-restart"

    def start(self, cluster: Cluster, job: TraceJob) -> ReplayStart | None:
        """Place compactly, if necessary by eviction; otherwise scattered."""
        index, free = cluster.index, idle_by_aggregator(cluster)
        if sum(free) < job.gpus:
            return None
        parts = widest_first(free, job.gpus)
        names = [n for a, count in parts for n in first_idle(index, a, count)]
        members = [index.number[n] for n in names]
        if len(parts) > 1 and index.excess_of(members) > 0:
            least = index.bound.least([index.site.endpoints[e] for e in members])
            found = _Consolidation(cluster, job.gpus, free).best(least)
            if found is not None:
                return found
        return ReplayStart(tuple(names))

    def ended(self, cluster: Cluster, live: Live) -> None:
        """Keep no state."""

    def improve(self, cluster: Cluster) -> Iterable[ReplayRegroup]:
        """Leave running jobs where they are: consolidation only makes room for pending jobs."""
        del cluster
        return ()


class _Consolidation:
    """One simulated consolidation for a job of ``count`` endpoints."""

    def __init__(self, cluster: Cluster, count: int, free: Sequence[int]) -> None:
        self._cluster = cluster
        self._count = count
        self._free = free
        index = cluster.index
        self._occupants: list[dict[str, list[int]]] = [{} for _ in free]
        for e, owner in enumerate(index.owner):
            if owner is not None:
                self._occupants[index.home[e]].setdefault(owner, []).append(e)

    def best(self, least: int) -> ReplayStart | None:
        """Return the consolidation that evicts the fewest endpoints, None if none is possible."""
        free = self._free
        order = sorted(range(len(free)), key=lambda a: (-free[a], a))
        best: tuple[int, tuple[int, ...], list[tuple[str, int]]] | None = None
        for a in order:
            targets = (a, *[b for b in order[:least] if b != a][: least - 1])
            lack = self._count - sum(free[t] for t in targets)
            if best is not None and lack >= best[0]:
                break  # later aggregators have fewer idle endpoints
            victims = self._victims(targets, lack)
            if victims is not None:
                cost = sum(len(self._endpoints(name)) for name, _ in victims)
                if best is None or cost < best[0]:
                    best = cost, targets, victims
        return None if best is None else self._decision(best[1], best[2])

    def _endpoints(self, name: str) -> tuple[str, ...]:
        return self._cluster.index.jobs[name].endpoints

    def _victims(self, targets: Sequence[int], lack: int) -> list[tuple[str, int]] | None:
        """Return (job, aggregator of its restart) pairs that free ``lack`` endpoints, or None."""
        inside: dict[str, int] = {}
        for a in targets:
            for name, members in self._occupants[a].items():
                inside[name] = inside.get(name, 0) + len(members)
        free = list(self._free)
        chosen: list[tuple[str, int]] = []
        # Most endpoints gained per evicted endpoint first, then the smallest job.
        order = sorted(
            (name for name in inside if self._cluster.movable(name)),
            key=lambda n: (len(self._endpoints(n)) / inside[n], len(self._endpoints(n)), n),
        )
        for name in order:
            if lack <= 0:
                break
            size = len(self._endpoints(name))
            refuges = [a for a, n in enumerate(free) if a not in targets and n >= size]
            if refuges:
                refuge = min(refuges, key=lambda a: (free[a], a))
                free[refuge] -= size
                chosen.append((name, refuge))
                lack -= inside[name]
        return chosen if lack <= 0 else None

    def _decision(self, targets: Sequence[int], victims: Sequence[tuple[str, int]]) -> ReplayStart:
        index = self._cluster.index
        taken: dict[int, int] = {}
        restarts = []
        for name, refuge in victims:
            size, used = len(self._endpoints(name)), taken.get(refuge, 0)
            restarts.append(Restart(name, tuple(first_idle(index, refuge, used + size)[used:])))
            taken[refuge] = used + size
        there = [n for a in targets for n in first_idle(index, a, self._free[a])]
        there += [n for name, _ in victims for n in self._inside(index, name, targets)]
        return ReplayStart(tuple(there[: self._count]), restarts=tuple(restarts))

    def _inside(self, index: FabricIndex, name: str, targets: Sequence[int]) -> list[str]:
        return [n for n in self._endpoints(name) if index.home[index.number[n]] in targets]
