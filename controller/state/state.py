"""The controller's state: the intent and what is known of the devices. Owned by the asyncio loop.

Only the service's parts change it, each time between two awaits, so every reader on the loop sees
it consistent.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from controller.base.errors import ServiceError
from controller.devices.aggregators import AttachPoint, Forwarding
from controller.devices.engine import RankStatus
from controller.state.events import EventLog
from controller.state.journal import Durable, Journal, Key
from controller.state.queue import QueueReport
from controller.state.records import JobRecord, JobSpec, Quarantine, TransactionRecord
from controller.state.transactions import KEPT_TRANSACTIONS, Running
from controller.state.writes import (
    DropJobs,
    DropQuarantine,
    Loaded,
    PutAttachments,
    PutFacts,
    PutJob,
    PutQuarantine,
    Write,
)
from controller.transaction.circuits import SwitchChange, fixed_attachments, homes
from controller.transaction.model import (
    Phase,
)
from scheduler.model import Aggregator, Fabric, Job, Policy, Site
from scheduler.queue.model import Project
from sitefile import CabledSite, EndpointCable

KEPT_JOBS = 2000
"""Ended jobs that can still be read; a controller runs for years."""
KEPT_JOB_BYTES = 64 * 2**20
"""Of the texts of all ended jobs together."""


@dataclass(slots=True, frozen=True)
class Handled:
    """What is being done with a job, and when that is over; its light is not moved meanwhile."""

    doing: str
    over: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class Connections:
    """Which devices answer now; the daemon supplies the functions."""

    aggregators: Callable[[], frozenset[str]]
    switches: Callable[[], frozenset[str]]
    servers: Callable[[], Mapping[str, bool]]


@dataclass(slots=True)
class State:
    """Intent, observation and locks."""

    site: CabledSite
    store: Durable
    clock: Callable[[], float]
    connections: Connections
    epoch: int = 0
    jobs: dict[str, JobRecord] = field(default_factory=dict)
    """In the order of submission."""
    unsaved: set[str] = field(default_factory=set)
    """Jobs that are being submitted: nothing happens to them before they are durable."""
    handled: dict[str, Handled] = field(default_factory=dict)
    """Jobs on which an operator's order is being carried out."""
    attachments: dict[str, AttachPoint] = field(default_factory=dict)
    """Where every lit endpoint is attached."""
    held: dict[str, AttachPoint | None] = field(default_factory=dict)
    """Endpoints whose traffic the aggregators drop, and where probes may reach them."""
    quarantine: dict[str, Quarantine] = field(default_factory=dict)
    detached: set[str] = field(default_factory=set)
    """Endpoints that an operator darkened; they are not lit again automatically."""
    flapping: frozenset[str] = frozenset()
    """Objects (``endpoint/gpu2``, ``aggregator/as0``) that flap too often to be used."""
    suspect: str = ""
    """Why the controller distrusts its own view and repairs nothing; empty when it trusts it."""
    command_lost: str = ""
    """Why this controller has lost command and touches no device; empty while it commands."""
    foreign_points: dict[str, frozenset[AttachPoint]] = field(default_factory=dict)
    foreign_endpoints: dict[str, frozenset[str]] = field(default_factory=dict)
    """Per optical switch: what foreign circuits hold. A key means that it was read once."""
    squatted: frozenset[str] = frozenset()
    """Endpoints held by containers of unknown jobs."""
    strangers: Mapping[str, str] = field(default_factory=dict)
    """Those unknown jobs, by endpoint."""
    spared: frozenset[str] = frozenset()
    """Endpoints that such a container may hold, as far as observed since the start: their flows
    stay."""
    unfit: Mapping[str, str] = field(default_factory=dict)
    """Endpoints whose GPU or agent is unfit now, and why."""
    statuses: list[RankStatus] = field(default_factory=list)
    running: dict[str, Running] = field(default_factory=dict)
    """Transactions whose end is not announced yet; see ``moving``."""
    finished: dict[str, TransactionRecord] = field(default_factory=dict)
    """The latest transactions that ended, by id, oldest first; see ``finish``."""
    moved: dict[str, tuple[SwitchChange, ...]] = field(default_factory=dict)
    """The circuits that each of them changed, where that is known."""
    stalled: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Jobs that have stopped communicating: since when that is known, and what was seen."""
    transactions: int = 0
    """Number of the last transaction."""
    owed_jobs: set[str] = field(default_factory=set)
    """Jobs that an interrupted transaction may have left frozen or stopped, until they run."""
    queue: QueueReport = field(default_factory=QueueReport)
    """The result of the last scheduling round."""
    promised: dict[str, frozenset[str]] = field(default_factory=dict)
    """Endpoints that a regroup under way frees, by the pending job they are for."""
    looked_at: float | None = None
    """When a trigger last started a search for a regroup."""
    scheduled_at: float | None = None
    """When the schedule last started one."""
    ready: bool = False
    """The devices have been observed once; jobs may start."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    """Set on every change that may let a waiting job run."""
    projects: Callable[[], Iterable[Project]] = field(init=False)
    """Quotas and fair shares: from the site file until the accounts are open."""
    _sizes: dict[str, tuple[JobSpec | None, int]] = field(default_factory=dict)
    """Per job that ended: its request and the bytes of its texts."""
    events: EventLog = field(init=False)
    journal: Journal = field(init=False)
    planner_site: Site = field(init=False)
    """The site as the scheduler's value, with every port counted."""
    cables: Mapping[str, EndpointCable] = field(init=False)
    """Every endpoint of the site by name."""
    optical: frozenset[str] = field(init=False)
    """The optical switches' names."""

    def __post_init__(self) -> None:
        self.events = EventLog(self.clock, lambda: self.epoch)
        self.journal = Journal(self.store, self.events, self.row)
        self.attachments = fixed_attachments(self.site)
        self.projects = lambda: self.site.scheduling.projects
        self.planner_site = self.site.scheduler_site()
        self.optical = frozenset(switch.name for switch in self.site.switches)
        self.cables = {cable.name: cable for cable in self.site.endpoints}

    def restore(self, loaded: Loaded) -> None:
        """Take over the stored state."""
        self.epoch = int(loaded.facts.get("epoch", "0"))
        self.jobs = {job.name: job for job in loaded.jobs}
        cabled = self.attachments  # hard-wired endpoints, from the site file
        taken = frozenset(cabled.values())
        self.attachments = cabled | {
            e: at
            for e, at in loaded.attachments.items()
            if e in self.cables and e not in cabled and at not in taken and self.has_port(at)
        }
        self.quarantine = {entry.object: entry for entry in loaded.quarantine}
        self.finished = {record.id: record for record, _ in loaded.transactions}
        self.transactions = int(loaded.facts.get("transactions", "0"))
        self.looked_at = _time(loaded.facts.get("regroup_looked_at"))
        self.scheduled_at = _time(loaded.facts.get("regroup_scheduled_at"))
        self.detached = set(json.loads(loaded.facts.get("detached", "[]"))) & self.cables.keys()
        self.events.restore(loaded.events)

    def next_epoch(self) -> None:
        """Begin a new revision of the intent."""
        self.epoch += 1

    @property
    def store_error(self) -> str:
        """Why the last durable write failed; empty when it did not."""
        return self.journal.error

    async def commit(self, *writes: Write) -> None:
        """Make an intention durable, with all events so far. On ServiceError, roll it back."""
        await self.journal.commit(*writes)

    async def record(self, *writes: Write) -> None:
        """Make durable what has happened. On ServiceError it is not durable yet and stays owed."""
        await self.journal.record(*writes)

    def row(self, key: Key) -> Write | None:
        """Return a row as it should stand in the store now; None while that is being decided."""
        match key:
            case ("job", name):
                if name in self.unsaved:
                    return None
                return PutJob(self.jobs[name]) if name in self.jobs else DropJobs((name,))
            case ("quarantine", name):
                entry = self.quarantine.get(name)
                return DropQuarantine(name) if entry is None else PutQuarantine((entry,))
            case ("attachments", _):
                return self.placed()
            case ("facts", _):
                return self.facts()
        return None

    def placed(self) -> PutAttachments:
        """Return the attachments for a durable write: a copy, because another thread writes it."""
        return PutAttachments(dict(self.attachments), self.epoch)

    def facts(self) -> PutFacts:
        """Return the counters and marks that have no table, for a durable write."""
        return PutFacts(
            {
                "epoch": str(self.epoch),
                "transactions": str(self.transactions),
                "detached": json.dumps(sorted(self.detached)),
                "regroup_looked_at": json.dumps(self.looked_at),
                "regroup_scheduled_at": json.dumps(self.scheduled_at),
            }
        )

    # --- jobs -----------------------------------------------------------------------------

    def put(self, job: JobRecord) -> JobRecord:
        """Replace a job's record and wake the tasks that wait for a change."""
        self.jobs[job.name] = job
        self.wake.set()
        return job

    def change(self, name: str, **fields: object) -> JobRecord:
        """Replace some fields of a job's record."""
        return self.put(self.replaced(name, **fields))

    def replaced(self, name: str, **fields: object) -> JobRecord:
        """Return a copy of a job's record with other fields; the state does not change."""
        return replace(self.jobs[name], **fields)  # type: ignore[arg-type]

    def forget_ended(self) -> tuple[str, ...]:
        """Forget the oldest ended jobs beyond the limits; return their names."""
        ended = [job for job in self.jobs.values() if job.ended]
        ended.sort(key=lambda job: job.finished_at or job.submitted_at)
        left, gone = KEPT_JOB_BYTES, []
        for number, job in enumerate(reversed(ended)):
            left -= self._texts(job)
            if number >= KEPT_JOBS or left < 0:
                gone.append(job.name)
        for name in gone:
            del self.jobs[name]
            self._sizes.pop(name, None)
        return tuple(reversed(gone))

    def _texts(self, job: JobRecord) -> int:
        """Return the size of a job's texts in bytes; counted once for each request."""
        known, size = self._sizes.get(job.name, (None, 0))
        if known is not job.request:
            request = job.request
            texts = (*request.command, *request.env, *request.env.values())
            size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
            self._sizes[job.name] = (job.request, size)
        return size

    def promised_endpoints(self) -> frozenset[str]:
        """Return the endpoints reserved for jobs that a regroup under way makes room for."""
        return frozenset(e for endpoints in self.promised.values() for e in endpoints)

    def cabled(self, job: JobRecord) -> tuple[str, ...]:
        """Return a job's endpoints without those that have left the site file since it started."""
        return tuple(e for e in job.endpoints if e in self.cables)

    def holders(self) -> dict[str, JobRecord]:
        """Return the job of every endpoint that has one."""
        return {e: job for job in self.jobs.values() if job.holding for e in job.endpoints}

    def moving(self) -> dict[str, Running]:
        """Return the transactions that still hold endpoints and jobs."""
        return {i: r for i, r in self.running.items() if r.tx.phase is not Phase.DONE}

    def transaction_of(self, job: str) -> Running | None:
        """Return the transaction that holds ``job`` now."""
        for running in self.moving().values():
            if any(held.name == job for held in running.tx.jobs):
                return running
        return None

    def finish(self, record: TransactionRecord, changes: tuple[SwitchChange, ...]) -> None:
        """Keep the end of a transaction; forget the oldest ones beyond the limit."""
        self.finished.pop(record.id, None)
        self.finished[record.id] = record
        self.moved[record.id] = changes
        while len(self.finished) > KEPT_TRANSACTIONS:
            # One that a restart interrupted stays until its end is known.
            oldest = next(i for i, kept in self.finished.items() if kept.finished_at is not None)
            del self.finished[oldest]
            self.moved.pop(oldest, None)

    # --- fabric ---------------------------------------------------------------------------

    def relocate(self, places: Mapping[str, AttachPoint | None]) -> bool:
        """Record where endpoints are, None for dark; return whether anything changed.

        A port holds one fiber: any other endpoint recorded there is removed. A foreign change may
        have taken the port of an endpoint that a transaction is moving away.
        """
        news = {e: at for e, at in places.items() if self.attachments.get(e) != at}
        taken = {at for at in news.values() if at is not None}
        gone = [e for e, at in self.attachments.items() if at in taken and e not in places]
        for endpoint in gone:
            del self.attachments[endpoint]
        for endpoint, at in news.items():
            if at is None:
                del self.attachments[endpoint]
            else:
                self.attachments[endpoint] = at
        return bool(news)

    def has_port(self, at: AttachPoint) -> bool:
        """Whether the site has this aggregator port for endpoints."""
        for cable in self.site.aggregators:
            if cable.name == at.aggregator:
                return at.port in cable.fibers or at.port in cable.fixed
        return False

    def homes(self) -> dict[str, str | None]:
        """Return each endpoint's home, None for a dark one."""
        return homes(self.site, self.attachments)

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

    def locked(self) -> dict[str, str]:
        """Return, by endpoint, the transaction that moves it."""
        return {e: ident for ident, r in self.moving().items() for e in r.tx.endpoints}

    def blocked_points(self) -> frozenset[AttachPoint]:
        """Return aggregator ports that nothing new may use: out of use, foreign, or reserved."""
        points = {
            AttachPoint(cable.name, port)
            for cable in self.site.aggregators
            for port in cable.fibers
            if f"{cable.name}/{port}" in self.quarantine
        }
        for foreign in self.foreign_points.values():
            points |= foreign
        for running in self.moving().values():
            for path in running.tx.paths:
                points |= {point for point in (path.before, path.after) if point is not None}
        return frozenset(points)

    def unavailable(self) -> dict[str, str]:
        """Return the endpoints that can be neither placed nor moved, and why."""
        aggregators = self.connections.aggregators()
        servers = self.connections.servers()
        locked = self.locked()
        reasons: dict[str, str] = {}
        for endpoint in self.site.endpoints:
            at = self.attachments.get(endpoint.name)
            device = endpoint.fiber.device
            if endpoint.name in self.quarantine:
                reason = f"quarantined: {self.quarantine[endpoint.name].reason}"
            elif not servers.get(endpoint.server, False):
                reason = f"the agent of {endpoint.server} does not answer"
            elif endpoint.name in locked:
                reason = f"being moved by transaction {locked[endpoint.name]}"
            elif at is not None and at.aggregator not in aggregators:
                reason = f"aggregator {at.aggregator} is not connected"
            elif endpoint.name in self.foreign_endpoints.get(device, frozenset()):
                reason = f"its fiber is held by a foreign circuit on {device}"
            elif f"endpoint/{endpoint.name}" in self.flapping:
                reason = "its link is flapping"
            elif at is not None and f"aggregator/{at.aggregator}" in self.flapping:
                reason = f"the session of aggregator {at.aggregator} is flapping"
            elif endpoint.name in self.unfit:
                reason = self.unfit[endpoint.name]
            elif endpoint.name in self.squatted:
                reason = "held by a container of an unknown job"
            elif device in self.optical and device not in self.foreign_points:
                reason = f"the circuits of {device} have not been read yet"
            else:
                continue
            reasons[endpoint.name] = reason
        return reasons

    def fabric(self) -> Fabric:
        """Return the fabric as the scheduler sees it now."""
        jobs = tuple(
            Job(
                job.name,
                self.cabled(job),
                policy=Policy(job.request.policy),
                pinned=job.request.pinned,
            )
            for job in self.jobs.values()
            if job.holding
        )
        return Fabric(
            self._usable_site(),
            self.homes(),
            jobs,
            unavailable=frozenset(self.unavailable()),
            epoch=self.epoch,
        )

    def forwarding(self) -> Forwarding:
        """Return what the aggregators are to forward now."""
        attachments = {e: at for e, at in self.attachments.items() if e not in self.held}
        attachments.update({e: at for e, at in self.held.items() if at is not None})
        jobs = {job.name: self.cabled(job) for job in self.jobs.values() if job.holding}
        return Forwarding(self.epoch, attachments, jobs, frozenset(self.held), self.spared)

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

    def aggregators_of(self, endpoints: Iterable[str]) -> frozenset[str]:
        """Return the aggregators these endpoints are under."""
        return frozenset(self.attachments[e].aggregator for e in endpoints if e in self.attachments)

    def _usable_site(self) -> Site:
        """Return the site without the ports that are out of use; occupied ports always count."""
        site = self.planner_site
        dead = self.blocked_points() - set(self.attachments.values())
        if not dead:
            return site
        return replace(site, aggregators=tuple(self._less(a, dead) for a in site.aggregators))

    def _less(self, aggregator: Aggregator, dead: frozenset[AttachPoint]) -> Aggregator:
        fibers = self.site.aggregator(aggregator.name).fibers
        ports = dict(aggregator.ports)
        for point in dead:
            if point.aggregator == aggregator.name and point.port in fibers:
                ports[fibers[point.port].device] -= 1
        return replace(aggregator, ports=ports)


def spread(endpoints: Sequence[str], homes: Mapping[str, str | None]) -> dict[str, int]:
    """Count endpoints per home, sorted by name; dark ones count under ``dark``."""
    counts: dict[str, int] = {}
    for name in endpoints:
        home = homes.get(name) or "dark"
        counts[home] = counts.get(home, 0) + 1
    return dict(sorted(counts.items()))


def _time(text: str | None) -> float | None:
    value = None if text is None else json.loads(text)
    return None if value is None else float(value)
