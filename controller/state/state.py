"""The controller's state: the intent and what is known of the devices. Owned by the asyncio loop.

Only the service's parts change it, each time between two awaits, so every reader on the loop sees
it consistent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from controller.base.errors import ServiceError
from controller.devices.aggregators import AttachPoint, Forwarding
from controller.devices.reports import COPY_AGE, Reports
from controller.state.events import EventLog
from controller.state.intend import keys
from controller.state.intend.intentions import Intention, Make, Table
from controller.state.jobs import Jobs
from controller.state.journal import Durable, Journal, Row
from controller.state.kept.checkpoints import CHECKPOINTS, Checkpoints
from controller.state.kept.comms import COMMS, KeptComms
from controller.state.kept.drains import Drains
from controller.state.kept.measurements import MEASUREMENTS, Measurements
from controller.state.kept.predictions import PREDICTIONS, Predictions
from controller.state.kept.promises import Promises
from controller.state.kept.recoveries import Recoveries
from controller.state.kept.rollouts import ROLLOUTS, Rollouts
from controller.state.kept.unknown import UnknownEpochs
from controller.state.kinds.kind import Key, Records
from controller.state.light import IDLE, Light, Standing
from controller.state.notices import Outbox
from controller.state.offers import Offers, ServerOffer
from controller.state.records import JobRecord
from controller.state.scheduling import spread_of
from controller.state.transactions import Transactions
from controller.state.usage import UsageMeter
from controller.state.writes import (
    DropJobs,
    DropMeasurements,
    DropRecords,
    Loaded,
    PutAttachments,
    PutFacts,
    PutJob,
    PutMeasurement,
    PutRecords,
    Write,
)
from scheduler.model import Fabric, Job, Policy, Slot
from scheduler.queue.model import ProjectShare
from sitefile import CabledSite, EndpointCable


@dataclass(slots=True)
class Reachability:
    """Which devices answer now; the daemon supplies the functions."""

    aggregators: Callable[[], frozenset[str]]
    switches: Callable[[], frozenset[str]]
    servers: Callable[[], Mapping[str, bool]]


class State:
    """Intent, observation and locks.

    ``jobs``, ``light``, ``transactions``, ``offers``, ``outbox`` and ``measurements``.
    """

    def __init__(
        self,
        site: CabledSite,
        store: Durable,
        clock: Callable[[], float],
        connections: Reachability,
        projects: Callable[[], Iterable[ProjectShare]],
    ) -> None:
        """``projects`` gives quotas and fair shares."""
        self.site = site
        self.store = store
        self.clock = clock
        self.connections = connections
        self.projects = projects
        self.planner_site = site.scheduler_site()
        """The site as the scheduler's value: every port counts, and the volumes usable now."""
        self.cables = {cable.name: cable for cable in site.endpoints}
        """Every endpoint of the site by name."""
        self.optical = frozenset(switch.name for switch in site.switches)
        """The optical switches' names."""
        self.theirs = site.engine_endpoints
        """Endpoints of another engine: lightloom's own jobs never get them."""
        self._tenant = tuple(sorted(self.theirs))
        self.freezers: frozenset[str] = frozenset()
        """Servers whose agents freeze the processes of another engine's jobs."""
        self.epoch = 0
        self.reports = Reports((s.name for s in site.servers), site.recovery.lost_after_s)
        """The servers' reports of the epochs that they have."""
        self.unknown = UnknownEpochs()
        """Set while the store may be an older copy: servers have later epochs, or on take-over."""
        self.promises = Promises()
        self.jobs = Jobs(lambda before, job: self.usage.changed(before, job, self.jobs))
        self.light = Light(site)
        self.transactions = Transactions()
        self.offers = Offers(site)
        self.outbox = Outbox(site)
        self.predictions = Predictions(PREDICTIONS)
        self.measurements = Measurements()
        self.comms = KeptComms(COMMS)
        self.checkpoints: Checkpoints = Records(CHECKPOINTS)
        self.recoveries = Recoveries()
        self.rollouts = Rollouts(ROLLOUTS)
        self.drains = Drains(site)
        self.usage = UsageMeter(self.planner_site, self.light, self.transactions, clock)
        self.events = EventLog(clock, lambda: self.epoch, self._owner_of)
        self.journal = Journal(store, self.events, self.row, self.usage.ledger)
        self.tables = self._tables()
        """The records of which a change is durable before anything acts on it, by kind."""
        self.suspect = ""
        """Why the controller distrusts its own view and repairs nothing; empty when it does not."""
        self.command_lost = ""
        """Why this controller has lost command and touches no device; empty while it commands."""
        self.looked_at: float | None = None
        """When a trigger last started a search for a regroup."""
        self.scheduled_at: float | None = None
        """When the schedule last started one."""
        self.ready = False
        """The devices have been observed once; jobs may start."""

    @property
    def kept(self) -> tuple[Records[Any], ...]:
        """The records of each kind that is kept one row each."""
        return (
            self.light.quarantine,
            self.outbox,
            self.predictions,
            self.comms,
            self.checkpoints,
            self.recoveries,
            self.rollouts,
            self.light.profiles,
        )

    def restore(self, loaded: Loaded) -> None:
        """Take over the stored state."""
        facts = loaded.facts
        self.jobs.restore(loaded.jobs)
        detached = json.loads(facts.get("detached", "[]"))
        self.light.restore(loaded.attachments, loaded.uplinks, detached)
        log = (record for record, _ in loaded.transactions)
        self.transactions.restore(log, int(facts.get("transactions", "0")))
        self.looked_at = _time(facts.get("regroup_looked_at"))
        self.scheduled_at = _time(facts.get("regroup_scheduled_at"))
        self.events.restore(loaded.events)
        number = int(facts.get("measurements", "0"))
        self.measurements.restore(loaded.measurements, number)
        for records in self.kept:
            name = records.kind.name
            records.restore(loaded.records.get(name, ()), int(facts.get(name, "0")))
        self._begin_epochs(loaded)
        self.recoveries.restore_totals(
            json.loads(facts.get("recoveries_forgotten", "{}")),
            _time(facts.get("recoveries_since")) or self.clock(),
        )
        self.promises.restore(facts)
        self.drains.restore(facts)
        self.unknown.restore(facts.get("unknown_epochs", "[]"))
        self.usage.restore(loaded.usage, loaded.last_usage, self.jobs)

    def take_offers(self, offered: Mapping[str, ServerOffer]) -> None:
        """Record the volumes that servers offer; jobs may start where theirs are usable."""
        if not self.offers.update(offered):
            return
        usable = {server.name: self.offers.usable(server.name) for server in self.site.servers}
        endpoints = self.planner_site.endpoints
        self.planner_site = replace(
            self.planner_site,
            endpoints=tuple(replace(e, volumes=usable[e.server]) for e in endpoints),
        )
        self.jobs.wake.set()

    def next_epoch(self) -> None:
        """Begin a new revision of the intent."""
        self.epoch += 1

    def _begin_epochs(self, loaded: Loaded) -> None:
        """Continue above every epoch that the store names; the counter may lag behind a row."""
        counted = int(loaded.facts.get("epoch", "0"))
        named = [job.epoch for job in loaded.jobs]
        named += [
            run.epoch for record in loaded.records.get(CHECKPOINTS.name, ()) for run in record.runs
        ]
        self.epoch = max([counted, loaded.placed_at, *named])
        if self.epoch > counted:
            self.journal.owe(keys.FACTS)
        self.reports.begin(self.epoch)

    def project_of(self, job: str) -> str:
        """Return a job's project; "" for one that is forgotten."""
        found = self.jobs.get(job)
        return "" if found is None else found.request.project

    def _owner_of(self, obj: str) -> str:
        """Return the project of an event's object; "" for what belongs to the site."""
        kind, _, name = obj.partition("/")
        return self.project_of(name) if kind == "job" else ""

    def saw_epochs(self, epochs: Iterable[int]) -> None:
        """Continue above the epochs that a server names: the store may be an older copy."""
        seen = self.reports.highest(epochs)
        if seen > self.epoch:
            text = f"servers know epoch {seen}, the store {self.epoch}: it is an older copy"
            self.unknown.add(self.epoch + 1, seen)
            self.epoch = seen
            self.journal.owe(keys.FACTS, keys.UNKNOWN)
            self.events.add("warning", "controller", "EpochRaised", text)

    def took_command(self) -> None:
        """Continue above every epoch that the lost store may have begun; see COPY_AGE."""
        self.unknown.add(self.epoch + 1, self.epoch + COPY_AGE)
        self.epoch += COPY_AGE

    async def accept_store(self) -> None:
        """Give up what the store does not have; durable. ServiceError."""
        accepted = self.unknown.ranges
        await self.intend({keys.UNKNOWN: lambda now: tuple(r for r in now if r not in accepted)})

    @property
    def store_error(self) -> str:
        """Why the last durable write failed; empty when it did not."""
        return self.journal.error

    async def commit(self, *rows: Row) -> None:
        """Make rows durable, with all events so far; see ``Journal.commit``."""
        await self.journal.commit(*rows)

    async def record(self, *rows: Row) -> None:
        """Make durable what has happened. On ServiceError it is not durable yet and stays owed."""
        await self.journal.record(*rows)

    def intention(self) -> Intention:
        """Return a change that is to be durable before anything acts on it."""
        return Intention(self.journal, self.tables.__getitem__)

    async def intend(
        self, changes: Mapping[Key, Make], *rows: Row, visible: bool = False, point: str = ""
    ) -> None:
        """Change records durably, all or none, together with ``rows``.

        ``visible`` reserves: the change is in memory at once if nothing else changes the records,
        and is undone when it is refused. Otherwise it is in memory as soon as it is durable.
        ``point`` names a failpoint. ServiceError; OutcomeUnknownError.
        """
        async with self.intention() as intention:
            await intention.acquire(*changes)
            for key, make in changes.items():
                (intention.now if visible else intention.will)(key, make)
            await intention.commit(*rows, point=point)

    def changing(self, key: Key) -> bool:
        """Whether a change of a record is under way whose outcome is not known yet."""
        return key in self.journal.locks

    def row(self, key: Key) -> Write:
        """Return the write of a row as memory has it now."""
        match key:
            case ("attachments", _):
                return self.placed()
            case ("facts", _):
                return self.facts()
            case (kind, name):
                table = self.tables[kind]
                return table.write(name, table.get(name))

    def _tables(self) -> dict[str, Table]:
        drains, kept = self.drains, self.measurements

        def never_removed(name: str) -> Write:
            raise AssertionError("it is replaced, not removed")

        return {
            "job": Table(
                self.jobs.get,
                self._put_job,
                self.jobs.remove,
                PutJob,
                lambda name: DropJobs((name,)),
                self.jobs.put_back,
            ),
            MEASUREMENTS.name: Table(
                kept.get,
                kept.put,
                kept.remove,
                lambda record: PutMeasurement(record, kept.results.get(record.id)),
                lambda ident: DropMeasurements((ident,)),
            ),
            "drains": Table(
                lambda _: drains.now,
                drains.put,
                never_removed,
                lambda record: PutFacts(record.facts()),
                never_removed,
            ),
            "unknown": Table(
                lambda _: self.unknown.ranges,
                self.unknown.put,
                never_removed,
                lambda ranges: PutFacts({"unknown_epochs": json.dumps(ranges)}),
                never_removed,
            ),
            **{records.kind.name: _table(records) for records in self.kept},
        }

    def _put_job(self, job: JobRecord) -> None:
        """Insert or replace a job; one that reuses a name queues last."""
        before = self.jobs.get(job.name)
        if before is not None and before.submitted_at != job.submitted_at:
            self.jobs.remove(job.name)
        self.jobs.put(job)

    def placed(self) -> PutAttachments:
        """Return the circuits for a durable write: copies, because another thread writes them."""
        light = self.light
        return PutAttachments(dict(light.attachments), dict(light.uplinks), self.epoch)

    def facts(self) -> PutFacts:
        """Return the counters and marks that have no table, for a durable write."""
        return PutFacts(
            {
                "epoch": str(self.epoch),
                "transactions": str(self.transactions.number),
                "measurements": str(self.measurements.number),
                "detached": json.dumps(sorted(self.light.detached)),
                "regroup_looked_at": json.dumps(self.looked_at),
                "regroup_scheduled_at": json.dumps(self.scheduled_at),
                **{one.kind.name: str(one.number) for one in self.kept if one.kind.prefix},
                "recoveries_forgotten": json.dumps(
                    {c: [t.failures, t.gpu_hours] for c, t in self.recoveries.forgotten.items()}
                ),
                "recoveries_since": json.dumps(self.recoveries.since),
                **self.promises.facts(),
                **self.drains.left_facts(),
            }
        )

    def freezes(self, job: JobRecord) -> bool:
        """Whether a job's processes can be frozen; those of a scope, by all of its servers."""
        scope = job.owner.scope
        if scope is None:
            return True
        return bool(scope) and {self.cables[e].server for e in self.cabled(job)} <= self.freezers

    def in_transaction(self, name: str) -> bool:
        """Whether a transaction works on a job; also one that a restart interrupted."""
        return name in self.jobs.owed or self.transactions.of_job(name) is not None

    def cabled(self, job: JobRecord) -> tuple[str, ...]:
        """Return a job's endpoints without those that have left the site file since it started."""
        return tuple(e for e in job.endpoints if e in self.cables)

    def lose_command(self, reason: str) -> None:
        """Record that a newer controller commands the site: this one touches no device any more."""
        if self.command_lost:
            return
        self.command_lost = self.suspect = f"a newer controller commands the site: {reason}"
        text = f"{self.command_lost}; this one changes no device any more; stop it"
        self.events.add("error", "controller", "CommandLost", text)

    def require_command(self) -> None:
        """Raise ServiceError ``forbidden`` when a newer controller commands the site."""
        if self.command_lost:
            raise ServiceError(
                "forbidden",
                self.command_lost,
                object="controller",
                hint="ask the newer controller, and stop this one",
            )

    def blocked_points(self) -> frozenset[AttachPoint]:
        """Return ports that no endpoint may get: uplinks, out of use, foreign, or reserved."""
        light = self.light
        points = {point for point in light.ports if str(point) in light.quarantine}
        points |= light.uplink_points()
        for foreign in light.foreign_points.values():
            points |= foreign
        for running in self.transactions.moving().values():
            for path in running.tx.paths:
                ends = (path.end, path.before, path.after)
                points |= {end for end in ends if isinstance(end, AttachPoint)}
        return frozenset(points)

    def unavailable(self) -> dict[str, str]:
        """Return the endpoints that can be neither placed nor moved, and why."""
        return {name: standing.reason for name, standing in self.aside().items()}

    def standings(self) -> dict[str, Standing]:
        """Return what every endpoint is now, in site order."""
        aside, holders = self.aside(), self.jobs.holders()
        promised = self.jobs.promised_endpoints()

        def of(name: str) -> Standing:
            if name in aside:
                return aside[name]
            if name not in self.light.attachments:
                return Standing("dark")
            if name in holders:
                return Standing("busy")
            return Standing("reserved", "kept for what starts next") if name in promised else IDLE

        return {cable.name: of(cable.name) for cable in self.site.endpoints}

    def aside(self) -> dict[str, Standing]:
        """Return the endpoints that can be neither placed nor moved: what they are, and why."""
        locked, answering = self.transactions.locked(), self.connections.servers()
        connected, kept = self.connections.aggregators(), self._kept_aside()
        found = {}
        for cable in self.site.endpoints:
            if transaction := locked.get(cable.name):
                why = f"being moved by transaction {transaction}"
                found[cable.name] = Standing("moving", why)
                continue
            standing = next(self._out_of_use(cable, answering, connected), kept.get(cable.name))
            if standing is not None:
                found[cable.name] = standing
        return found

    def _out_of_use(
        self, endpoint: EndpointCable, answering: Mapping[str, bool], connected: frozenset[str]
    ) -> Iterator[Standing]:
        """Yield what keeps an endpoint from work against anybody's will, gravest first."""
        light, name, device = self.light, endpoint.name, endpoint.fiber.device
        home = at.aggregator if (at := light.attachments.get(name)) is not None else None
        if name in light.quarantine:
            yield Standing("quarantined", f"quarantined: {light.quarantine[name].reason}")
        if not answering.get(endpoint.server, False):
            yield Standing("unreachable", f"the agent of {endpoint.server} does not answer")
        if home is not None and home not in connected:
            yield Standing("unreachable", f"aggregator {home} is not connected")
        if name in light.foreign_endpoints.get(device, frozenset()):
            yield Standing("held", f"its fiber is held by a foreign circuit on {device}")
        if f"endpoint/{name}" in light.flapping:
            yield Standing("flapping", "its link is flapping")
        if f"aggregator/{home}" in light.flapping:
            yield Standing("flapping", f"the session of aggregator {home} is flapping")
        if name in light.unfit:
            yield Standing("lost", light.unfit[name])
        if name in light.unready:
            yield Standing("unready", light.unready[name])
        if device in light.lost_switches:
            yield Standing("lost", f"optical switch {device} is lost")
        if device in self.optical and device not in light.foreign_points:
            yield Standing("unready", f"the circuits of {device} have not been read yet")

    def _kept_aside(self) -> dict[str, Standing]:
        """Return the fit endpoints that get nothing new: spares, drains, and what others hold."""
        holders = self.jobs.holders()
        kept = {e: Standing("reserved", _stands_by(job)) for e, job in self.spares().items()}
        for e, why in self.drains.left_at().items():
            kept[e] = Standing("held", why)
        for e, why in self.drains.drained(self.light.attachments).items():
            kept[e] = Standing("draining" if e in holders else "drained", why)
        held = Standing("held", "held by a container of an unknown run")
        return kept | dict.fromkeys(self.light.squatted, held)

    def spares(self) -> dict[str, str]:
        """Return the endpoints that stand by for lost ones, and for which job: "" for any."""
        holders = self.jobs.holders()
        kept = dict.fromkeys(self.site.recovery.spares, "") | self.jobs.spares()
        return {e: job for e, job in kept.items() if e not in holders}

    def usable_spares(self) -> dict[str, str]:
        """Return those of :meth:`spares` that nothing keeps from taking a lost one's place."""
        aside = self.aside()
        return {e: job for e, job in self.spares().items() if aside[e].state == "reserved"}

    def fabric(self, *, ours: bool = False) -> Fabric:
        """Return the fabric as the scheduler sees it now; with ``ours`` for lightloom's own jobs.

        Those get no endpoint of another engine. A job has those of its spares that are fit: they
        are idle when it ends.
        """
        aside = self.aside()
        jobs = tuple(
            Job(
                job.name,
                self.cabled(job),
                policy=Policy(job.request.policy),
                pinned=job.request.pinned,
                spread=spread_of(job.request),
                spares=tuple(e for e in job.spares if e in aside and aside[e].state == "reserved"),
            )
            for job in self.jobs.values()
            if job.holding
        )
        return Fabric(
            self.planner_site,
            self.light.homes(),
            jobs,
            unavailable=frozenset(aside) | (self.theirs if ours else frozenset()),
            epoch=self.epoch,
            search_nodes=self.site.scheduling.search_nodes,
            held_ports=self._held_ports(),
        )

    def fabric_of(self, job: JobRecord) -> Fabric:
        """Return the fabric as one job may use it: only the endpoints of its own engine."""
        ours = job.owner.starts
        fabric = self.fabric(ours=ours)
        if ours or not self.theirs:
            return fabric
        return replace(fabric, unavailable=fabric.unavailable | self.cables.keys() - self.theirs)

    def forwarding(self) -> Forwarding:
        """Return what the aggregators are to forward now."""
        light = self.light
        attachments = {e: at for e, at in light.attachments.items() if e not in light.held}
        attachments.update({e: at for e, at in light.held.items() if at is not None})
        engine = self.site.engine
        tenant = engine.kind if engine is not None and engine.isolation == "open" else None
        jobs = {
            job.name: self.cabled(job)
            for job in self.jobs.values()
            if job.holding and job.owner.engine != tenant
        }
        if tenant is not None:
            jobs[tenant] = self._tenant
        held, uplinks = frozenset(light.held), self.site.uplinks
        return Forwarding(self.epoch, attachments, jobs, held, light.spared, uplinks)

    def forwarding_at(self, target: Mapping[str, AttachPoint | None]) -> Forwarding:
        """Return what the aggregators are to forward once ``target`` is in place."""
        now = self.forwarding()
        places = {**now.attachments, **target}
        return replace(
            now,
            epoch=now.epoch + 1,
            attachments={e: at for e, at in places.items() if at is not None},
            held=now.held - target.keys(),
        )

    def _held_ports(self) -> Mapping[Slot, int]:
        """Count the blocked ports that carry no endpoint, as the scheduler counts ports."""
        return self.light.slots(self.blocked_points() - set(self.light.attachments.values()))


def _table(records: Records[Any]) -> Table:
    """Return the table of records that are kept one row each."""
    kind = records.kind
    return Table(
        records.get,
        records.put,
        records.remove,
        lambda record: PutRecords(kind, (record,)),
        lambda key: DropRecords(kind, (key,)),
    )


def _time(text: str | None) -> float | None:
    value = None if text is None else json.loads(text)
    return None if value is None else float(value)


def _stands_by(job: str) -> str:
    return f"spare of job {job}" if job else "kept as a spare of the site"
