"""The controller as members of some projects see it: other projects' jobs do not exist.

Every route goes through here for users and viewers. The fabric (ports, homes, what is free) looks
the same to all; jobs, their figures, their events and the addresses of devices do not.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from itertools import count
from typing import TypeVar

from controller.api.operations import Commands, Queries
from controller.api.scope.redact import Redactor
from controller.base.errors import ServiceError
from controller.base.slices import Turns, in_slices
from controller.devices.engine import ExecEnd, ExecOutput, Typed, WindowSize
from controller.people.authz import Owned, Principal
from controller.schema.checkpoints import (
    CheckpointsView,
    DrainView,
    IntervalView,
    RecoveriesView,
    SiteRecoveriesView,
    VerificationView,
)
from controller.schema.engine import AllocationAnswerView, EngineChecksView, EngineView
from controller.schema.execs import ExecRequest
from controller.schema.fabric import (
    AggregatorView,
    CircuitView,
    EndpointView,
    EventView,
    NodeView,
    OpticsView,
    SiteView,
    SwitchView,
)
from controller.schema.insight.advice import AdviceView, PredictionView, WhatIfRequest, WhatIfView
from controller.schema.insight.comms import CommsView
from controller.schema.insight.measurements import MeasurementView
from controller.schema.jobs import ContainerView, JobRequest, JobView
from controller.schema.live import (
    HealthView,
    LogLineView,
    PortPowerView,
    PowerSeriesView,
    SeriesView,
    TopView,
    TraceView,
)
from controller.schema.plans import QuarantineView, RolloutView, TransactionView
from controller.schema.usage import By, UsageView
from controller.schema.volumes import DataRemovalView, VolumeView
from controller.stream.feed import Cut, Frame, Reader

_EVENT_PAGE = 1000
Result = TypeVar("Result")


class ScopedQueries:
    """The reads of users and viewers; the gate refuses them all others."""

    def __init__(self, queries: Queries, principal: Principal) -> None:
        self._queries = queries
        self._principal = principal

    @property
    def epoch(self) -> int:
        """Revision of the intent that the next answer shows."""
        return self._queries.epoch

    # --- jobs -----------------------------------------------------------------------------

    def owners(self) -> Mapping[str, Owned]:
        """Return the owner of every job that the principal sees, by name."""
        sees = self._principal.sees
        return {n: job for n, job in self._queries.owners().items() if sees(job.project)}

    async def jobs(self, names: Sequence[str] | None = None) -> list[JobView]:
        """Return the jobs of the principal's projects; with ``names`` only these."""
        own = self.owners()
        wanted = list(own) if names is None else [name for name in names if name in own]
        found = await self._queries.jobs(wanted)
        return await in_slices(found, self.redactor().job)

    async def job(self, name: str) -> JobView:
        """Return one job; a job of another project is not found."""
        try:
            job = await self._queries.job(name)
        except ServiceError as error:
            raise (_no_job(name) if error.code == "not_found" else error) from None
        if not self._principal.sees(job.project):
            raise _no_job(name)
        return self.redactor().job(job)

    def highest_priority(self, project: str) -> int:
        """Return the highest priority that users may give jobs of ``project``."""
        return self._queries.highest_priority(project)

    async def logs(
        self,
        name: str,
        *,
        rank: int | None,
        tail: int | None,
        follow: bool,
        since: float | None = None,
        search: str = "",
    ) -> AsyncIterator[LogLineView]:
        """Stream a job's output."""
        await self.job(name)
        lines = self._queries.logs(
            name, rank=rank, tail=tail, follow=follow, since=since, search=search
        )
        async for line in lines:
            yield line

    async def comms(self, name: str, *, rank: int | None, since_s: float | None) -> CommsView:
        """Return what an own job communicates."""
        await self.job(name)
        return await self._queries.comms(name, rank=rank, since_s=since_s)

    async def checkpoints(self, name: str) -> CheckpointsView:
        """Return the checkpoints of an own job."""
        await self.job(name)
        return self.redactor().checkpoints(await self._queries.checkpoints(name))

    async def checkpoint_advice(self, name: str) -> IntervalView:
        """Say how often an own job should write checkpoints."""
        await self.job(name)
        found = await self._queries.checkpoint_advice(name)
        return found.model_copy(update={"why": self.redactor().text(found.why)})

    async def recoveries(self, name: str) -> RecoveriesView:
        """Return what became of an own job that lost ranks."""
        await self.job(name)
        return self.redactor().recoveries(await self._queries.recoveries(name))

    async def site_recoveries(self, since: float) -> SiteRecoveriesView:
        """Return what failures cost the site; the gate refuses it those who see a part of it."""
        return await self._queries.site_recoveries(since)

    # --- fabric ---------------------------------------------------------------------------

    async def health(self) -> HealthView:
        """Return the controller's state without the devices' own messages."""
        return self.redactor().health(await self._queries.health())

    async def site(self) -> SiteView:
        """Return what is cabled."""
        site = await self._queries.site()
        redact = self.redactor()
        return site.model_copy(
            update={
                "endpoints": await in_slices(site.endpoints, redact.endpoint),
                "aggregators": await in_slices(site.aggregators, redact.aggregator),
                "switches": [redact.switch(s) for s in site.switches],
            }
        )

    def endpoint_names(self) -> Sequence[str]:
        """Return the endpoints' names."""
        return self._queries.endpoint_names()

    async def endpoints(self, names: Sequence[str] | None = None) -> list[EndpointView]:
        """Return every endpoint; its job only if that is visible."""
        found = await self._queries.endpoints(names)
        return await in_slices(found, self.redactor().endpoint)

    async def aggregators(self) -> list[AggregatorView]:
        """Return every aggregator."""
        found = await self._queries.aggregators()
        return await in_slices(found, self.redactor().aggregator)

    async def switches(self) -> list[SwitchView]:
        """Return every optical switch, without its address."""
        redact = self.redactor()
        return [redact.switch(s) for s in await self._queries.switches()]

    async def optics(self, switch: str) -> OpticsView:
        """Return the health of a switch's ports, without the operator's labels and the alarms."""
        read = await self._queries.optics(switch)
        ports = [port.model_copy(update={"label": ""}) for port in read.ports]
        return read.model_copy(update={"ports": ports, "alarms": []})

    async def circuits(self) -> list[CircuitView]:
        """Return the circuits."""
        return await self._queries.circuits()

    async def containers(self) -> list[ContainerView]:
        """Return the containers of own jobs."""
        found = await self._queries.containers()
        redact = self.redactor()
        own = [c for c in found if redact.owns(c.job)]
        return await in_slices(own, redact.container)

    async def nodes(self) -> list[NodeView]:
        """Return every server, without its agent's address."""
        containers = await self._queries.containers()
        redact = self.redactor()
        own = Counter(c.server for c in containers if redact.owns(c.job))
        return [redact.node(node, own[node.name]) for node in await self._queries.nodes()]

    async def volumes(self) -> list[VolumeView]:
        """Return the volumes that the principal's projects may use, and their own data."""
        redact = self.redactor()
        shown = [redact.volume(view) for view in await self._queries.volumes()]
        return [view for view in shown if view is not None]

    async def engine(self) -> EngineView:
        """Return how it stands with the other engine; the gate refuses it others."""
        return await self._queries.engine()

    async def engine_check(self) -> EngineChecksView:
        """Examine the other engine's set-up; the gate refuses it others."""
        return await self._queries.engine_check()

    async def drains(self) -> list[DrainView]:
        """Return what is drained or being drained, with the own jobs that use it."""
        redact = self.redactor()
        return [redact.drain(view) for view in await self._queries.drains()]

    async def quarantine(self) -> list[QuarantineView]:
        """Return what is out of use, without the reasons."""
        return [
            entry.model_copy(update={"reason": "out of use"})
            for entry in await self._queries.quarantine()
        ]

    async def events(self, since: int, limit: int) -> list[EventView]:
        """Return events of own jobs."""
        redact = self.redactor()
        found: list[EventView] = []
        with Turns() as turns:
            while len(found) < limit:
                page = await self._queries.events(since, _EVENT_PAGE)
                cut = [redact.event(event) for event in page]
                found += [event for event in cut if event is not None]
                if len(page) < _EVENT_PAGE:
                    break
                await turns.breathe()
                since = page[-1].id
        return found[:limit]

    # --- live -----------------------------------------------------------------------------

    async def top(self) -> TopView:
        """Return the last second of own jobs and of the endpoints."""
        top = await self._queries.top()
        return self.redactor().top(top)

    async def series(self, since_s: float, jobs: Collection[str] | None = None) -> SeriesView:
        """Return samples of own jobs, or of those of ``jobs``."""
        own = self.owners()
        wanted = own.keys() if jobs is None else own.keys() & jobs
        return self.redactor().series(await self._queries.series(since_s, wanted))

    def watch(self, last_id: str | None, cut: Cut | None = None) -> Reader:
        """Follow changes of own jobs and of the fabric."""
        del cut  # replaced by that of the principal's projects
        return self._queries.watch(
            last_id, ProjectsCut(self._principal.projects, self._queries.owners)
        )

    async def usage(
        self, since: float | None, until: float | None, by: By, projects: Collection[str] | None
    ) -> UsageView:
        """Return what jobs of the principal's projects held."""
        own = self._principal.projects
        if self._principal.site_wide:
            return await self._queries.usage(since, until, by, projects)
        wanted = own if projects is None else own & set(projects)
        return await self._queries.usage(since, until, by, wanted)

    async def power(self) -> list[PortPowerView]:
        """Return the light at the switches' ports: it reveals nothing about jobs."""
        return await self._queries.power()

    async def power_series(self, switch: str, port: str, since_s: float) -> PowerSeriesView:
        """Return a port's light over time."""
        return await self._queries.power_series(switch, port, since_s)

    async def trace(self, endpoint: str) -> TraceView:
        """Follow an endpoint's light."""
        return await self._queries.trace(endpoint)

    async def transactions(self) -> list[TransactionView]:
        """Return the transactions that move own jobs."""
        redact = self.redactor()
        shown = [redact.transaction(view) for view in await self._queries.transactions()]
        return [view for view in shown if view is not None]

    async def transaction(self, ident: str) -> TransactionView:
        """Return a transaction that moves own jobs, without other jobs."""
        try:
            view = await self._queries.transaction(ident)
        except ServiceError as error:
            raise (_no_transaction(ident) if error.code == "not_found" else error) from None
        shown = self.redactor().transaction(view)
        if shown is None:
            raise _no_transaction(ident)
        return shown

    async def rollouts(self) -> list[RolloutView]:
        """Return no rollouts: the gate shows them to operators only."""
        return []

    async def rollout(self, ident: str) -> RolloutView:
        """Refuse: the gate shows rollouts to operators only."""
        raise ServiceError("not_found", f"there is no rollout {ident}", object=f"rollout/{ident}")

    async def measurements(self) -> list[MeasurementView]:
        """Return the measurements of the principal's projects."""
        found = await self._queries.measurements()
        return [view for view in found if self._principal.sees(view.project)]

    async def measurement(self, ident: str) -> MeasurementView:
        """Return one measurement; one of another project is not found."""
        try:
            view = await self._queries.measurement(ident)
        except ServiceError as error:
            raise (_no_measurement(ident) if error.code == "not_found" else error) from None
        if not self._principal.sees(view.project):
            raise _no_measurement(ident)
        return view

    async def predictions(self, projects: Collection[str] | None = None) -> list[PredictionView]:
        """Return the predictions of jobs of the principal's projects."""
        if self._principal.site_wide:
            return await self._queries.predictions(projects)
        own = self._principal.projects
        return await self._queries.predictions(own if projects is None else own & set(projects))

    async def advice(self, job: str | None, jobs: Collection[str] | None = None) -> AdviceView:
        """Say what limits own jobs; a job of another project is not found."""
        own = self.owners().keys()
        found = await self._queries.advice(job, own if jobs is None else own & set(jobs))
        redact = self.redactor()
        return found.model_copy(
            update={"findings": [redact.finding(finding) for finding in found.findings]}
        )

    # --- redaction ------------------------------------------------------------------------

    def redactor(self) -> Redactor:
        """Return the redactor for the principal's projects and the present jobs."""
        return Redactor(self._principal.projects, self._queries.owners())


class ScopedCommands:
    """The changes of users; the gate refuses them all others."""

    def __init__(self, commands: Commands, queries: Queries, principal: Principal) -> None:
        self._commands = commands
        self._queries = queries
        self._principal = principal
        self._scoped = ScopedQueries(queries, principal)

    async def submit(self, request: JobRequest, user: str = "") -> JobView:
        """Queue a job of one of the principal's projects.

        Its name starts with the project's, and with no longer one's: a conflict must not reveal
        the name of another project's job, nor a new job replace one.
        """
        view = await self._named([request], lambda named: self._commands.submit(named[0], user))
        return self._scoped.redactor().job(view)

    async def submit_all(self, requests: Sequence[JobRequest], user: str = "") -> list[str]:
        """Queue jobs of the principal's projects, all or none; return their names."""
        return await self._named(requests, lambda named: self._commands.submit_all(named, user))

    async def _named(
        self,
        requests: Sequence[JobRequest],
        submit: Callable[[list[JobRequest]], Awaitable[Result]],
    ) -> Result:
        """Submit jobs; those without a name get the first free ones of their project."""
        owners = self._queries.owners()
        projects = {*self._queries.projects(), *(one.project for one in owners.values())}
        for request in requests:
            self._check_submission(request, projects, owners)
        refused: set[str] = set()
        while True:
            chosen, named = self._with_names(requests, refused)
            try:
                return await submit(named)
            except ServiceError as error:
                # A concurrent request, or containers of an unknown job, may have the name.
                name = error.object.removeprefix("job/")
                if error.code != "conflict" or name not in chosen:
                    raise
                refused.add(name)

    def _check_submission(
        self, request: JobRequest, projects: Collection[str], owners: Mapping[str, Owned]
    ) -> None:
        project, name = request.project, request.name
        if not self._principal.sees(project):
            raise ServiceError(
                "not_found",
                f"there is no project {project}",
                object=f"project/{project}",
                hint=f"yours: {', '.join(sorted(self._principal.projects))}",
            )
        if name is None:
            return
        if not name.startswith(f"{project}-"):
            raise ServiceError(
                "invalid",
                f"names of the jobs of project {project} start with {project}-",
                object=f"job/{name}",
                hint=f"call it {project}-{name}"[:200],
            )
        owner = next((head for head in _heads(name) if head in projects), project)
        if len(owner) > len(project):
            raise ServiceError(
                "invalid",
                f"names that start with {owner}- belong to project {owner}",
                object=f"job/{name}",
                hint="choose another name",
            )
        if name in owners and owners[name].project != project:
            raise ServiceError(
                "conflict",
                f"{name} is the name of a job of another project",
                object=f"job/{name}",
                hint="choose another name",
            )

    def _with_names(
        self, requests: Sequence[JobRequest], refused: Collection[str]
    ) -> tuple[set[str], list[JobRequest]]:
        """Return the names given to jobs without one, and all jobs."""
        if all(request.name is not None for request in requests):
            return set(), list(requests)
        asked = {request.name for request in requests if request.name is not None}
        taken = self._queries.owners().keys() | asked | set(refused)
        numbers: defaultdict[str, Iterator[int]] = defaultdict(lambda: count(1))
        chosen, named = set(), []
        for request in requests:
            if request.name is not None:
                named.append(request)
                continue
            tried = (f"{request.project}-{n}" for n in numbers[request.project])
            name = next(one for one in tried if one not in taken)
            chosen.add(name)
            named.append(request.model_copy(update={"name": name}))
        return chosen, named

    async def cancel(self, name: str) -> JobView:
        """Stop a job, or take it out of the queue."""
        await self._scoped.job(name)
        return self._scoped.redactor().job(await self._commands.cancel(name))

    async def pause(self, name: str) -> JobView:
        """Freeze all containers of a job."""
        await self._scoped.job(name)
        return self._scoped.redactor().job(await self._commands.pause(name))

    async def resume(self, name: str) -> JobView:
        """Thaw a paused job."""
        await self._scoped.job(name)
        return self._scoped.redactor().job(await self._commands.resume(name))

    async def verify_checkpoints(self, name: str, step: int | None) -> VerificationView:
        """Compare the checkpoints of an own job with their sums."""
        await self._scoped.job(name)
        return await self._commands.verify_checkpoints(name, step)

    async def drop_checkpoint(self, name: str, step: int, *, force: bool) -> CheckpointsView:
        """Remove a step of an own job's checkpoints."""
        await self._scoped.job(name)
        left = await self._commands.drop_checkpoint(name, step, force=force)
        return self._scoped.redactor().checkpoints(left)

    async def allocated(self, number: str) -> AllocationAnswerView:
        """Arrange the light of an engine's job; its hook sees no other job and no reason."""
        return await self._commands.allocated(number)

    async def whatif(self, name: str, request: WhatIfRequest) -> WhatIfView:
        """Predict the step of an own job with other homes."""
        await self._scoped.job(name)
        return await self._commands.whatif(name, request)

    async def remove_data(
        self, volume: str, owner: str, *, server: str | None, dry_run: bool
    ) -> DataRemovalView:
        """Remove what one of the principal's projects, or a job of one, left in a volume."""
        if not self._principal.sees(owner.partition(".")[0]):
            raise ServiceError(
                "not_found",
                f"{owner} left nothing in volume {volume}",
                object=f"volume/{volume}",
                hint="see `lightloom get volumes`",
            )
        return await self._commands.remove_data(volume, owner, server=server, dry_run=dry_run)

    async def exec(
        self, name: str, request: ExecRequest, given: AsyncIterator[Typed | WindowSize]
    ) -> AsyncGenerator[ExecOutput | ExecEnd]:
        """Prepare a command in a rank of a job."""
        await self._scoped.job(name)
        return await self._commands.exec(name, request, given)


class ProjectsCut:
    """Limits the feed to some projects; jobs come and go while it is read.

    The owners are read once for all frames that are published together.
    """

    def __init__(self, projects: frozenset[str], owners: Callable[[], Mapping[str, Owned]]) -> None:
        self._projects = projects
        self._owners = owners
        self._known = owners()
        self._redactor: Redactor | None = None

    @property
    def key(self) -> frozenset[str]:
        """The projects."""
        return self._projects

    def frame(self, item: Frame) -> Frame | None:
        """Return the visible part of a frame, also that an own job is gone."""
        if self._redactor is None:
            before, self._known = self._known, self._owners()
            now = self._known
            gone = {} if before is now else {n: o for n, o in before.items() if n not in now}
            self._redactor = Redactor(self._projects, {**gone, **now} if gone else now)
            asyncio.get_running_loop().call_soon(self._forget)
        return self._redactor.frame(item)

    def _forget(self) -> None:
        self._redactor = None


def _heads(name: str) -> Iterator[str]:
    """Yield what stands before each dash of a name, the longest first."""
    while name := name.rpartition("-")[0]:
        yield name


def _no_job(name: str) -> ServiceError:
    return ServiceError(
        "not_found",
        f"there is no job {name}",
        object=f"job/{name}",
        hint="see `lightloom get jobs`",
    )


def _no_transaction(ident: str) -> ServiceError:
    return ServiceError(
        "not_found", f"there is no transaction {ident}", object=f"transaction/{ident}"
    )


def _no_measurement(ident: str) -> ServiceError:
    return ServiceError(
        "not_found",
        f"there is no measurement {ident}",
        object=f"measurement/{ident}",
        hint="see `lightloom get measurements`",
    )
