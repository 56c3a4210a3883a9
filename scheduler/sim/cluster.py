"""Keeps the replayed cluster: the production fabric index, and the progress of running jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from scheduler.model import Fabric, Move, Request, Site
from scheduler.occupancy import capacities
from scheduler.placement.index import DARK, FabricIndex
from scheduler.placement.pool import EndpointPool
from scheduler.placement.selection import least_span
from scheduler.sim.slowdown import Slowdown
from scheduler.sim.trace import TraceJob


@dataclass(slots=True, frozen=True)
class ReplaySettings:
    """Assumptions of a replay. All times in seconds."""

    pause_s: float = 0.25
    """Dark time of a job that a regroup moves."""
    restart_s: float = 60.0
    """From eviction to the first step after a restart: image, process group, checkpoint."""
    checkpoint_s: float = 600.0
    """Run time between checkpoints: an evicted job repeats its work since the last one."""
    cooldown_s: float = 3600.0
    """A job that was paused or evicted is not disturbed for this long."""
    retry_s: float = 60.0
    """Delay before another attempt to consolidate a scattered job."""
    least_gain: float = 0.001
    """Least slowdown, as a share, of a scattered job when a regroup is evaluated: even a job that
    runs at full speed occupies links between aggregators."""
    samples: int = 500
    """Points of the fragmentation curve."""


@dataclass(slots=True)
class Live:
    """One running job."""

    job: TraceJob
    endpoints: tuple[str, ...]
    started: float
    left: float
    """Seconds of work at slowdown 1."""
    since: float
    """Time up to which its work is booked."""
    resume_at: float
    """It stalls until then."""
    run_from: float
    """Time of its start or restart: its checkpoints count from here."""
    excess: int = 0
    """Aggregators beyond those that a job of its size needs on the empty site."""
    slowdown: float = 1.0
    version: int = 0
    """Incremented with every new expected end."""
    pauses: int = 0
    left_alone_until: float = 0.0
    retry_at: float = 0.0
    in_vain: tuple[int, float] | None = None
    """State of the cluster in which it was last tried to consolidate the job in vain."""


@dataclass(slots=True)
class Cluster:
    """The state that a policy sees. Only the engine changes it."""

    index: FabricIndex
    pool: EndpointPool
    """The endpoints that traced jobs can use."""
    settings: ReplaySettings
    slowdown: Slowdown
    now: float = 0.0
    live: dict[str, Live] = field(default_factory=dict)
    scattered: dict[str, None] = field(default_factory=dict)
    """Running jobs that a regroup could bring closer together, in the order in which they became
    scattered."""
    changes: int = 0
    """Starts, ends and regroups so far."""

    def just_started(self, name: str) -> bool:
        """Return whether the job starts at this moment, so that moving it costs nothing."""
        live = self.live[name]
        return live.started == self.now and live.pauses == 0

    def excess_at(self, places: Mapping[int, int]) -> int:
        """Return the aggregators beyond those that so many endpoints need on an empty site.

        Endpoints of too few optical switches cannot be brought together under one aggregator:
        their job is slow all the same. Each dark endpoint counts as a place of its own.
        """
        span = len(places)
        if span == 1 and DARK not in places:
            return 0
        dark = places.get(DARK, 0)
        span += dark - (dark > 0)
        return max(span - least_span(self.index, self.pool, sum(places.values())), 0)

    def movable(self, name: str) -> bool:
        """Return whether the job may be moved now."""
        return self.just_started(name) or self.live[name].left_alone_until <= self.now

    def state(self) -> tuple[int, float]:
        """Return what is equal at two times only if jobs, homes and movable jobs are the same.

        It is the number of changes, and the end of the next cool-down.
        """
        cooling = (live.left_alone_until for live in self.live.values())
        return self.changes, min((end for end in cooling if end > self.now), default=inf)

    def gain_s(self, live: Live) -> float:
        """Return the GPU-seconds that consolidating the job now would save."""
        passed = max(self.now - max(live.since, live.resume_at), 0.0)
        left = max(live.left - passed / live.slowdown, 0.0)
        return live.job.gpus * left * max(live.slowdown - 1.0, self.settings.least_gain)

    def places(self, endpoints: Iterable[str]) -> dict[int, int]:
        """Count endpoints per aggregator number."""
        number, home = self.index.number, self.index.home
        counts: dict[int, int] = {}
        for name in endpoints:
            a = home[number[name]]
            counts[a] = counts.get(a, 0) + 1
        return counts


@dataclass(slots=True, frozen=True)
class Restart:
    """An evicted job and the endpoints on which it starts again at once."""

    job: str
    endpoints: tuple[str, ...]


@dataclass(slots=True, frozen=True)
class ReplayStart:
    """Start the offered job. Restarts come first, then idle endpoints are re-homed."""

    endpoints: tuple[str, ...]
    moves: tuple[Move, ...] = ()
    restarts: tuple[Restart, ...] = ()


@dataclass(slots=True, frozen=True)
class ReplayRegroup:
    """Move the light of running jobs."""

    moves: tuple[Move, ...]


ANY_GPU = Request("", 1)
"""The request of every traced job, apart from the count."""


def empty_cluster(site: Site, settings: ReplaySettings, slowdown: Slowdown) -> Cluster:
    """Return the site idle, every endpoint under the first aggregator with a port for it."""
    left = capacities(Fabric(site, {}))
    homes: dict[str, str | None] = {}
    for endpoint in site.endpoints:
        if endpoint.ocs is None:
            continue
        slots = ((a.name, endpoint.ocs) for a in site.aggregators)
        slot = next((s for s in slots if left.get(s, 0) > 0), None)
        if slot is not None:
            left[slot] -= 1
            homes[endpoint.name] = slot[0]
    index = FabricIndex(Fabric(site, homes))
    return Cluster(index, index.pool(ANY_GPU), settings, slowdown)
