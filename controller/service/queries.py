"""The reads of the API: every answer comes from the state and changes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence

from controller.advice.desk import AdviceDesk
from controller.base.errors import ServiceError
from controller.base.slices import in_slices
from controller.comms.desk import CommsDesk
from controller.comms.ledger import Bucket, BucketSums
from controller.devices.engine import EngineError, ExecutionEngine
from controller.images.prepare import Preparations
from controller.jobs.keeper import JobKeeper
from controller.measurements.keeper import MeasurementKeeper
from controller.people.authz import Owned
from controller.plans.allocation import AllocationFiles
from controller.plans.planner import Planner
from controller.plans.rollout import RolloutDesk
from controller.ranks.calls import placed
from controller.ranks.secrets import SecretFolder
from controller.reconcile.quarantine import QuarantineKeeper
from controller.schema.checkpoints import (
    CheckpointSumsView,
    CheckpointsView,
    DrainView,
    IntervalView,
    RecoveriesView,
    RecoverySumsView,
    SiteRecoveriesView,
)
from controller.schema.engine import EngineChecksView, EngineView
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
from controller.schema.images import ImageView, PreparationView
from controller.schema.insight.advice import AdviceView, PredictionView
from controller.schema.insight.comms import CommsView
from controller.schema.insight.measurements import MeasurementView
from controller.schema.jobs import ContainerView, JobView, SecretView
from controller.schema.live import (
    HealthView,
    LogLineView,
    PortPowerView,
    PowerSeriesView,
    SeriesView,
    TopView,
    TraceView,
)
from controller.schema.plans import Allocation, QuarantineView, RolloutView, TransactionView
from controller.schema.usage import By, UsageSumsView, UsageView
from controller.schema.volumes import VolumeView
from controller.service.engines import EngineDesk
from controller.service.survival import CheckpointDesk, DrainDesk, RecoveryDesk
from controller.state.records import JobRecord
from controller.state.state import State
from controller.stream.feed import Cut, Feed, Reader
from controller.telemetry.light import OpticalPower
from controller.telemetry.throughput import Telemetry
from controller.views import light
from controller.views.fabric import FabricViews
from controller.views.health import HealthViews
from controller.views.images import image_view
from controller.views.jobs import JobViews
from controller.views.optics import Optics
from controller.views.series import series_of
from controller.views.usage import UsageViews
from controller.views.volumes import VolumeViews


class Queries:
    """Reads the state. Raises ServiceError, nothing else."""

    def __init__(
        self,
        state: State,
        engine: ExecutionEngine,
        keeper: JobKeeper,
        *,
        fabric: FabricViews,
        jobs: JobViews,
        health: HealthViews,
        telemetry: Telemetry,
        power: OpticalPower,
        optics: Optics,
        usage: UsageViews,
        plans: Planner,
        rollouts: RolloutDesk,
        allocation: AllocationFiles,
        quarantine: QuarantineKeeper,
        volumes: VolumeViews,
        feed: Feed,
        preparations: Preparations,
        secrets: SecretFolder,
        measurements: MeasurementKeeper,
        advice: AdviceDesk,
        comms: CommsDesk,
        checkpoints: CheckpointDesk,
        recoveries: RecoveryDesk,
        drains: DrainDesk,
        engines: EngineDesk,
    ) -> None:
        self._state = state
        self._engine = engine
        self._keeper = keeper
        self._fabric = fabric
        self._jobs = jobs
        self._health = health
        self._telemetry = telemetry
        self._power = power
        self._optics = optics
        self._usage = usage
        self._plans = plans
        self._rollouts = rollouts
        self._allocation = allocation
        self._quarantine = quarantine
        self._volumes = volumes
        self._feed = feed
        self._preparations = preparations
        self._secrets = secrets
        self._measurements = measurements
        self._advice = advice
        self._comms = comms
        self._checkpoints = checkpoints
        self._recoveries = recoveries
        self._drains = drains
        self._engines = engines
        self._owned: dict[str, tuple[JobRecord, Owned]] = {}
        self._owners: Mapping[str, Owned] = {}

    @property
    def epoch(self) -> int:
        """Revision of the intent."""
        return self._state.epoch

    async def comms(self, name: str, *, rank: int | None, since_s: float | None) -> CommsView:
        """Return what a job communicates: of one rank, or of all with None."""
        return await self._comms.view(self._keeper.get(name), rank, since_s)

    def collectives(self) -> Mapping[str, Mapping[Bucket, BucketSums]]:
        """Return sums of collectives by job that has not ended, operation and size."""
        return self._comms.collectives()

    def endpoint_names(self) -> Sequence[str]:
        """Return the endpoints' names, in the order of the site file."""
        return list(self._state.cables)

    async def endpoints(self, names: Sequence[str] | None = None) -> list[EndpointView]:
        """Return every endpoint, in the order of the site file; with ``names`` only these."""
        return await self._fabric.endpoints(names)

    async def aggregators(self) -> list[AggregatorView]:
        """Return every aggregator."""
        return await self._fabric.aggregators()

    async def switches(self) -> list[SwitchView]:
        """Return every optical switch."""
        return self._fabric.switches()

    async def optics(self, switch: str) -> OpticsView:
        """Return the health of a switch's ports and its alarms, a few seconds old at most."""
        return await self._optics.read(switch)

    async def circuits(self) -> list[CircuitView]:
        """Return the circuits read back from all switches."""
        return self._fabric.circuits()

    async def containers(self) -> list[ContainerView]:
        """Return the containers the agents saw last."""
        return await self._jobs.containers()

    async def nodes(self) -> list[NodeView]:
        """Return every server."""
        return self._fabric.nodes()

    async def volumes(self) -> list[VolumeView]:
        """Return the volumes of every server, and what jobs left in them."""
        return await self._volumes.volumes()

    async def events(self, since: int, limit: int) -> list[EventView]:
        """Return at most ``limit`` events above id ``since``, oldest first; for 0 the latest."""
        return self._fabric.events(since, limit)

    async def top(self) -> TopView:
        """Return the live figures of the last second."""
        return await self._jobs.top()

    async def series(self, since_s: float, jobs: Collection[str] | None = None) -> SeriesView:
        """Return samples of the last ``since_s`` seconds, of ``jobs`` (None is all)."""
        telemetry = self._telemetry
        return await series_of(self._state, telemetry.history, since_s, telemetry.gpu_history, jobs)

    async def usage(
        self, since: float | None, until: float | None, by: By, projects: Collection[str] | None
    ) -> UsageView:
        """Return what jobs held between two times, of ``projects`` (None is all)."""
        return await self._usage.over(since, until, by, projects)

    def usage_totals(self) -> Mapping[str, UsageSumsView]:
        """Return, by project, all usage since the controller started."""
        return self._usage.totals()

    async def power(self) -> list[PortPowerView]:
        """Return the light at every port of the optical switches."""
        return light.port_powers(self._power)

    async def power_series(self, switch: str, port: str, since_s: float) -> PowerSeriesView:
        """Return a port's light over the last ``since_s`` seconds. ServiceError ``not_found``."""
        return light.power_series(self._power, switch, port, since_s)

    async def trace(self, endpoint: str) -> TraceView:
        """Follow an endpoint's light to its aggregator. ServiceError ``not_found``."""
        cable = self._state.cables.get(endpoint)
        if cable is None:
            raise ServiceError(
                "not_found",
                f"the site has no endpoint {endpoint}",
                object=f"endpoint/{endpoint}",
                hint="see `lightloom get endpoints`",
            )
        return light.trace(self._state, self._power, cable)

    async def allocation(self) -> Allocation:
        """Return the allocation in the form of a file."""
        return self._allocation.export()

    async def rollouts(self) -> list[RolloutView]:
        """Return the rollouts that are kept, oldest first."""
        return self._rollouts.rollouts()

    async def rollout(self, ident: str) -> RolloutView:
        """Return one rollout."""
        return self._rollouts.rollout(ident)

    async def transactions(self) -> list[TransactionView]:
        """Return the transactions that are kept, oldest first."""
        idents = [*self._state.transactions.finished, *self._state.transactions.running]
        return [self._plans.transaction(ident) for ident in idents]

    def watch(self, last_id: str | None, cut: Cut | None = None) -> Reader:
        """Follow all changes, from the frame after ``last_id`` on."""
        return self._feed.read(last_id, cut)

    def follow(self) -> Reader:
        """Follow all changes but not the samples, as a part of the controller."""
        return self._feed.follow()

    def projects(self) -> Collection[str]:
        """Return the projects of the site file and of its accounts, by name."""
        return {project.name for project in self._state.projects()}

    def owners(self) -> Mapping[str, Owned]:
        """Return the owner of every job, by name; the same object until one of them changes."""
        jobs, kept = self._state.jobs, self._owned
        if len(kept) == len(jobs) and all(
            job is known[0] for job, known in zip(jobs.values(), kept.values(), strict=True)
        ):
            return self._owners
        found: dict[str, tuple[JobRecord, Owned]] = {}
        for name, job in jobs.items():
            known = kept.get(name)
            if known is None or known[0] is not job:
                owned = Owned(
                    name, job.request.project, job.endpoints, holding=job.holding, ended=job.ended
                )
                known = job, owned
            found[name] = known
        self._owned = found
        self._owners = {name: owned for name, (_, owned) in found.items()}
        return self._owners

    async def site(self) -> SiteView:
        """Return what is cabled."""
        return await self._fabric.site()

    async def health(self) -> HealthView:
        """Return the controller's own state and the devices it talks to."""
        return self._health.health()

    def highest_priority(self, project: str) -> int:
        """Return the highest priority that users may give jobs of ``project``."""
        return self._state.site.scheduling.highest_priority(project)

    async def jobs(self, names: Sequence[str] | None = None) -> list[JobView]:
        """Return every job, in the order of submission; with ``names`` those of these."""
        jobs = self._state.jobs
        if names is None:
            return await self._jobs.jobs(jobs.values())
        return await self._jobs.jobs(jobs[name] for name in names if name in jobs)

    async def job(self, name: str) -> JobView:
        """Return one job."""
        return self._jobs.job(self._keeper.get(name))

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
        """Stream a job's output, of all ranks if ``rank`` is None.

        The record names the server of every rank, also after the job's end and after a restart
        of the controller, and the run: an earlier job of this name may have been another's.
        """
        job = self._keeper.get(name)
        lines = self._engine.logs(
            name,
            rank,
            tail,
            follow,
            placed(self._state, job),
            since=since,
            search=search,
            epoch=job.epoch,
        )
        try:
            async for line in lines:
                yield LogLineView(
                    rank=line.rank,
                    time=line.time,
                    stream=line.stream,
                    text=line.text,
                )
        except EngineError as error:
            raise ServiceError(
                "unavailable", str(error), object=f"job/{name}", hint=error.hint
            ) from error

    async def transaction(self, ident: str) -> TransactionView:
        """Return one transaction."""
        return self._plans.transaction(ident)

    async def images(self, timeout_s: float) -> list[ImageView]:
        """Return the images of the servers that answer within ``timeout_s``."""
        return await in_slices(await self._engine.images(timeout_s), image_view)

    async def preparation(self, ident: str) -> PreparationView:
        """Return how far the servers are with pulling an image ahead."""
        return self._preparations.get(ident)

    async def measurements(self) -> list[MeasurementView]:
        """Return the measurements without their results, oldest first."""
        return self._measurements.views()

    async def measurement(self, ident: str) -> MeasurementView:
        """Return one measurement with its result. ServiceError ``not_found``."""
        return await self._measurements.view(ident)

    async def predictions(self, projects: Collection[str] | None = None) -> list[PredictionView]:
        """Return the predictions of jobs of ``projects`` (None is all), oldest first."""
        return self._advice.predictions(projects)

    async def advice(self, job: str | None, jobs: Collection[str] | None = None) -> AdviceView:
        """Say what limits one job, or all that hold endpoints; of ``jobs`` only (None is all)."""
        return await self._advice.advise(job, jobs)

    async def checkpoints(self, name: str) -> CheckpointsView:
        """Return a job's checkpoints, the newest first; ``conflict`` for a job without any."""
        return await self._checkpoints.checkpoints(name)

    async def checkpoint_advice(self, name: str) -> IntervalView:
        """Say how often a job should write checkpoints."""
        return await self._checkpoints.checkpoint_advice(name)

    async def recoveries(self, name: str) -> RecoveriesView:
        """Return what became of a job that lost ranks, oldest first."""
        return self._recoveries.of_job(name)

    async def site_recoveries(self, since: float) -> SiteRecoveriesView:
        """Return what failures since ``since`` (seconds since 1970) cost the site."""
        return await self._recoveries.of_site(since)

    def survival(self) -> tuple[Mapping[str, CheckpointSumsView], RecoverySumsView]:
        """Return sums of checkpoints by job that has not ended, and of recoveries; cheap."""
        return self._checkpoints.sums(), self._recoveries.sums()

    async def engine(self) -> EngineView:
        """Return how it stands with the other engine. ServiceError ``not_found``."""
        return self._engines.status()

    async def engine_check(self) -> EngineChecksView:
        """Examine the other engine's set-up. ServiceError ``not_found``."""
        return await self._engines.check()

    async def drains(self) -> list[DrainView]:
        """Return what is drained or being drained."""
        return self._drains.views()

    async def quarantine(self) -> list[QuarantineView]:
        """Return the ports and endpoints that are out of use."""
        return self._quarantine.views()

    async def secrets(self) -> list[SecretView]:
        """Return the secrets that jobs may use, by project and name, without their values."""
        found = await self._secrets.names()
        return [SecretView(project=project, name=name) for project, name in found]
