"""Finds the objects whose entry in a list has changed, from snapshots that are cheap to compare.

The stream announces an object when its snapshot differs from the last one, so a snapshot holds
everything that a list shows, except measured values (rates, utilisation and estimates from
them), which differ every second. A snapshot is reused as long as its sources have not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from controller.devices.aggregators import Aggregators, AttachPoint
from controller.devices.engine import RankStatus
from controller.devices.switches import Switches
from controller.schema.stream import ChangedKind
from controller.state.kept.drains import DrainedObject, LeftContainers
from controller.state.kept.phases import phase_of
from controller.state.records import JobRecord, Quarantine
from controller.state.state import State
from ocs_driver.base import PortPower

Shown = Mapping[str, object]
"""Snapshots of one list's objects by name; equal if the list shows the same."""


@dataclass(slots=True, frozen=True)
class _Sources:
    """Copies of everything that the views of endpoints and aggregators are made from."""

    attachments: Mapping[str, AttachPoint]
    quarantine: Mapping[str, Quarantine]
    aggregators: frozenset[str]
    servers: Mapping[str, bool]
    locked: Mapping[str, str]
    holding: Mapping[str, tuple[str, ...]]
    foreign: Mapping[str, frozenset[str]]
    known: frozenset[str]
    flapping: frozenset[str]
    unfit: Mapping[str, str]
    unready: Mapping[str, str]
    lost_switches: frozenset[str]
    squatted: frozenset[str]
    spares: Mapping[str, str]
    promised: frozenset[str]
    drains: Mapping[str, DrainedObject]
    left: tuple[LeftContainers, ...]


@dataclass(slots=True)
class _Containers:
    """Latest status of the containers, by the objects that show them."""

    seen: list[RankStatus] = field(default_factory=list)
    by_server: dict[str, tuple[RankStatus, ...]] = field(default_factory=dict)
    by_job: dict[tuple[str, int], tuple[tuple[int, str], ...]] = field(default_factory=dict)

    def update(self, statuses: list[RankStatus]) -> None:
        if statuses is self.seen:
            return
        servers: dict[str, list[RankStatus]] = {}
        jobs: dict[tuple[str, int], list[tuple[int, str]]] = {}
        for status in statuses:
            servers.setdefault(status.server, []).append(status)
            jobs.setdefault((status.job, status.epoch), []).append(
                (status.rank, status.state.value)
            )
        self.seen = statuses
        self.by_server = {
            name: tuple(sorted(found, key=lambda s: (s.job, s.epoch, s.rank)))
            for name, found in servers.items()
        }
        self.by_job = {key: tuple(sorted(found)) for key, found in jobs.items()}


class Changes:
    """Compares the state and the latest readings of the devices with those of the last call."""

    def __init__(
        self,
        state: State,
        aggregators: Aggregators,
        switches: Switches,
        power: Callable[[str], Mapping[str, PortPower]],
        *,
        protected: Callable[[str], object],
        measurements: Callable[[], Shown] = dict,
    ) -> None:
        """``power`` returns the latest light levels at a switch's ports, ``protected`` whether a
        job's checkpoints have copies.

        ``measurements`` returns snapshots of the measurements by id.
        """
        self._state = state
        self._aggregators = aggregators
        self._switches = switches
        self._power = power
        self._protected = protected
        self._measurements = measurements
        self._sources: _Sources | None = None
        self._version = 0
        """Number of changes of the sources."""
        self._endpoints: Shown = {}
        self._holders: dict[str, JobRecord] = {}
        self._ports: dict[str, object] = {}
        """Per aggregator: the endpoints on its ports, and the ports that are out of use."""
        self._jobs_on: dict[str, frozenset[str]] = {}
        """Per server: the jobs on its endpoints."""
        self._containers = _Containers()
        self._last: Mapping[ChangedKind, Shown] = {}

    def drain(self) -> dict[ChangedKind, list[str]]:
        """Return by kind the names of the objects that changed since the last call."""
        before, self._last = self._last, self._shown()
        return {kind: _differing(before.get(kind, {}), now) for kind, now in self._last.items()}

    def _shown(self) -> dict[ChangedKind, Shown]:
        """Return what the lists show now."""
        state = self._state
        sources = self._sources_now()
        if sources != self._sources:
            self._sources = sources
            self._version += 1
            self._holders = state.jobs.holders()
            self._endpoints = self._endpoints_now(sources)
            self._ports = self._ports_now(sources)
            self._jobs_on = self._jobs_on_now()
        self._containers.update(state.jobs.statuses)
        return {
            "endpoint": self._endpoints,
            "aggregator": {
                name: self._aggregator(name, there=name in sources.aggregators)
                for name in self._ports
            },
            "switch": {cable.name: self._switch(cable.name) for cable in state.site.switches},
            "node": self._nodes(sources),
            "quarantine": sources.quarantine,
            "job": {name: self._job(job) for name, job in state.jobs.items()},
            "measurement": self._measurements(),
        }

    def _sources_now(self) -> _Sources:
        state = self._state
        return _Sources(
            attachments=dict(state.light.attachments),
            quarantine=dict(state.light.quarantine),
            aggregators=state.connections.aggregators(),
            servers=dict(state.connections.servers()),
            locked=state.transactions.locked(),
            holding={job.name: job.endpoints for job in state.jobs.values() if job.holding},
            foreign=dict(state.light.foreign_endpoints),
            known=frozenset(state.light.foreign_points),
            flapping=state.light.flapping,
            unfit=dict(state.light.unfit),
            unready=dict(state.light.unready),
            lost_switches=state.light.lost_switches,
            squatted=state.light.squatted,
            spares=state.jobs.spares(),
            promised=state.jobs.promised_endpoints(),
            drains=dict(state.drains.of),
            left=state.drains.left,
        )

    def _endpoints_now(self, sources: _Sources) -> Shown:
        standings = self._state.standings()
        ranks = {
            endpoint: (name, rank)
            for name, endpoints in sources.holding.items()
            for rank, endpoint in enumerate(endpoints)
        }
        return {
            cable.name: (
                sources.attachments.get(cable.name),
                ranks.get(cable.name),
                standings[cable.name],
                sources.unfit.get(cable.name, ""),
            )
            for cable in self._state.site.endpoints
        }

    def _ports_now(self, sources: _Sources) -> dict[str, object]:
        under: dict[str, list[tuple[int, str, str]]] = {}
        for endpoint, at in sources.attachments.items():
            job = self._holders.get(endpoint)
            under.setdefault(at.aggregator, []).append((at.port, endpoint, job.name if job else ""))
        dead: dict[str, list[str]] = {}
        for name in sources.quarantine:
            aggregator, slash, port = name.partition("/")
            if slash:
                dead.setdefault(aggregator, []).append(port)
        return {
            cable.name: (sorted(under.get(cable.name, ())), sorted(dead.get(cable.name, ())))
            for cable in self._state.site.aggregators
        }

    def _aggregator(self, name: str, *, there: bool) -> object:
        return self._aggregators.carrier(name) if there else None, self._ports[name]

    def _switch(self, name: str) -> object:
        seen = self._switches.last_map(name)
        return (
            name in self._switches.connected(),
            seen.circuits if seen else None,
            self._switches.capabilities(name),
            self._switches.error(name),
            self._power(name),
        )

    def _jobs_on_now(self) -> dict[str, frozenset[str]]:
        jobs: dict[str, set[str]] = {}
        for endpoint, job in self._holders.items():
            if (cable := self._state.cables.get(endpoint)) is not None:
                jobs.setdefault(cable.server, set()).add(job.name)
        return {server: frozenset(names) for server, names in jobs.items()}

    def _nodes(self, sources: _Sources) -> Shown:
        return {
            server.name: (
                sources.servers.get(server.name, False),
                self._jobs_on.get(server.name),
                self._containers.by_server.get(server.name),
            )
            for server in self._state.site.servers
        }

    def _job(self, job: JobRecord) -> object:
        containers = self._containers.by_job.get((job.name, job.epoch))
        if job.ended and containers is None:
            return job
        state = self._state
        running = state.transactions.of_job(job.name)
        moving = None if running is None else (running.tx.id, running.tx.phase)
        waits: object = None
        if job.state == "pending":
            queue = state.jobs.queue
            hold = queue.holds.get(job.name)
            waits = (
                None
                if hold is None
                else (hold, queue.positions[job.name], len(queue.holds), queue.hints.get(job.name))
            )
        recovery = state.recoveries.under_way(job.name, job.submitted_at)
        return (
            job,
            containers,
            None if recovery is None else phase_of(recovery),
            self._protected(job.name) if job.request.checkpoint and not job.ended else None,
            moving,
            waits,
            state.jobs.stalled.get(job.name),
            # Every placement shows what is left of the fabric.
            self._version if job.holding else None,
        )


def _differing(before: Shown, now: Shown) -> list[str]:
    if before is now:
        return []
    names = [name for name, shown in now.items() if _other(before.get(name), shown)]
    return names + [name for name in before if name not in now]


def _other(before: object, now: object) -> bool:
    return before is not now and before != now
