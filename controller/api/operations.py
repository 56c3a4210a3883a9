"""What the API asks of the controller: the seam between HTTP and the owner of the state.

Every call runs on the daemon's loop and raises ``ServiceError``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from typing import Protocol

from controller.comms.ledger import Bucket, BucketSums
from controller.devices.engine import ExecEnd, ExecOutput, Typed, WindowSize
from controller.people.authz import Owned
from controller.schema.checkpoints import (
    CheckpointSumsView,
    CheckpointsView,
    DrainKind,
    DrainView,
    IntervalView,
    RecoveriesView,
    RecoverySumsView,
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
from controller.schema.images import ImageView, PreparationView, PrepareRequest
from controller.schema.insight.advice import AdviceView, PredictionView, WhatIfRequest, WhatIfView
from controller.schema.insight.comms import CommsView
from controller.schema.insight.measurements import (
    MeasurementImport,
    MeasurementRequest,
    MeasurementView,
)
from controller.schema.jobs import ContainerView, JobRequest, JobView, SecretView
from controller.schema.live import (
    HealthView,
    LogLineView,
    PortPowerView,
    PowerSeriesView,
    SeriesView,
    TopView,
    TraceView,
)
from controller.schema.plans import (
    Allocation,
    AllocationDiffView,
    AttachRequest,
    PlanRequest,
    PlanView,
    QuarantineView,
    RolloutRequest,
    RolloutView,
    TransactionView,
)
from controller.schema.usage import By, UsageSumsView, UsageView
from controller.schema.volumes import DataRemovalView, VolumeView
from controller.stream.feed import Cut, Reader


class Queries(Protocol):
    """Reads."""

    @property
    def epoch(self) -> int:
        """Revision of the intent that the next answer shows."""
        ...

    async def health(self) -> HealthView:
        """Return the controller's own state."""
        ...

    async def site(self) -> SiteView:
        """Return what is cabled."""
        ...

    def highest_priority(self, project: str) -> int:
        """Return the highest priority that users may give jobs of ``project``."""
        ...

    def projects(self) -> Collection[str]:
        """Return the projects of the site file and of its accounts, by name."""
        ...

    def owners(self) -> Mapping[str, Owned]:
        """Return the owner of every job, by name, in the order of submission."""
        ...

    async def jobs(self, names: Sequence[str] | None = None) -> list[JobView]:
        """Return every job, newest last; with ``names`` only those that exist of these."""
        ...

    async def job(self, name: str) -> JobView:
        """Return one job."""
        ...

    def logs(
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

        Only lines at or after ``since`` that contain ``search``.
        """
        ...

    async def comms(self, name: str, *, rank: int | None, since_s: float | None) -> CommsView:
        """Return what a job communicates: of one rank, or of all with None."""
        ...

    def collectives(self) -> Mapping[str, Mapping[Bucket, BucketSums]]:
        """Return sums of collectives by job that has not ended, operation and size."""
        ...

    def endpoint_names(self) -> Sequence[str]:
        """Return the endpoints' names, in the order of the site file."""
        ...

    async def endpoints(self, names: Sequence[str] | None = None) -> list[EndpointView]:
        """Return every endpoint, in the order of the site file; with ``names`` only these."""
        ...

    async def aggregators(self) -> list[AggregatorView]:
        """Return every aggregator."""
        ...

    async def switches(self) -> list[SwitchView]:
        """Return every optical switch."""
        ...

    async def optics(self, switch: str) -> OpticsView:
        """Return the health of a switch's ports and its alarms."""
        ...

    async def circuits(self) -> list[CircuitView]:
        """Return the circuits read back from all switches."""
        ...

    async def containers(self) -> list[ContainerView]:
        """Return the containers the agents saw last."""
        ...

    async def nodes(self) -> list[NodeView]:
        """Return every server."""
        ...

    async def volumes(self) -> list[VolumeView]:
        """Return the volumes of every server, and what jobs left in them."""
        ...

    async def events(self, since: int, limit: int) -> list[EventView]:
        """Return at most ``limit`` events with an id above ``since``, oldest first."""
        ...

    async def top(self) -> TopView:
        """Return the live figures of the last second."""
        ...

    async def series(self, since_s: float, jobs: Collection[str] | None = None) -> SeriesView:
        """Return samples of the last ``since_s`` seconds, of ``jobs`` (None is all)."""
        ...

    async def usage(
        self, since: float | None, until: float | None, by: By, projects: Collection[str] | None
    ) -> UsageView:
        """Return what jobs held between two times, of ``projects`` (None is all)."""
        ...

    def usage_totals(self) -> Mapping[str, UsageSumsView]:
        """Return, by project, all usage since the controller started; it only grows."""
        ...

    async def power(self) -> list[PortPowerView]:
        """Return the light at every port of the optical switches."""
        ...

    async def power_series(self, switch: str, port: str, since_s: float) -> PowerSeriesView:
        """Return a port's light over the last ``since_s`` seconds."""
        ...

    async def trace(self, endpoint: str) -> TraceView:
        """Follow an endpoint's light to its aggregator."""
        ...

    async def allocation(self) -> Allocation:
        """Return the allocation in the form of a file."""
        ...

    async def transactions(self) -> list[TransactionView]:
        """Return the transactions that are kept, oldest first."""
        ...

    async def images(self, timeout_s: float) -> list[ImageView]:
        """Return the images of the servers that answer within ``timeout_s``."""
        ...

    async def preparation(self, ident: str) -> PreparationView:
        """Return how far the servers are with pulling an image ahead."""
        ...

    def watch(self, last_id: str | None, cut: Cut | None = None) -> Reader:
        """Follow all changes, from the frame after ``last_id`` on."""
        ...

    async def transaction(self, ident: str) -> TransactionView:
        """Return one transaction."""
        ...

    async def rollouts(self) -> list[RolloutView]:
        """Return the rollouts that are kept, oldest first."""
        ...

    async def rollout(self, ident: str) -> RolloutView:
        """Return one rollout."""
        ...

    async def predictions(self, projects: Collection[str] | None = None) -> list[PredictionView]:
        """Return the predictions of jobs of ``projects`` (None is all), oldest first."""
        ...

    async def advice(self, job: str | None, jobs: Collection[str] | None = None) -> AdviceView:
        """Say what limits one job, or all that hold endpoints; of ``jobs`` only (None is all)."""
        ...

    async def quarantine(self) -> list[QuarantineView]:
        """Return the ports and endpoints that are out of use."""
        ...

    async def secrets(self) -> list[SecretView]:
        """Return the secrets that jobs may use, by project and name, without their values."""
        ...

    async def measurements(self) -> list[MeasurementView]:
        """Return the measurements without their results, oldest first."""
        ...

    async def measurement(self, ident: str) -> MeasurementView:
        """Return one measurement with its result."""
        ...

    async def checkpoints(self, name: str) -> CheckpointsView:
        """Return a job's checkpoints, the newest first; ``conflict`` for a job without any."""
        ...

    async def checkpoint_advice(self, name: str) -> IntervalView:
        """Say how often a job should write checkpoints."""
        ...

    async def recoveries(self, name: str) -> RecoveriesView:
        """Return what became of a job that lost ranks, oldest first."""
        ...

    async def site_recoveries(self, since: float) -> SiteRecoveriesView:
        """Return what failures since ``since`` (seconds since 1970) cost the site."""
        ...

    def survival(self) -> tuple[Mapping[str, CheckpointSumsView], RecoverySumsView]:
        """Return sums of checkpoints by job that has not ended, and of recoveries."""
        ...

    async def engine(self) -> EngineView:
        """Return how it stands with the other engine; ``not_found`` on a site without one."""
        ...

    async def engine_check(self) -> EngineChecksView:
        """Examine the other engine's set-up."""
        ...

    async def drains(self) -> list[DrainView]:
        """Return what is drained or being drained."""
        ...


class Commands(Protocol):
    """Changes."""

    async def submit(self, request: JobRequest, user: str = "") -> JobView:
        """Queue a job of ``user``, the caller's name."""
        ...

    async def submit_all(self, requests: Sequence[JobRequest], user: str = "") -> list[str]:
        """Queue jobs of ``user``, all or none; return their names."""
        ...

    async def cancel(self, name: str) -> JobView:
        """Stop a job, or take it out of the queue."""
        ...

    async def pause(self, name: str) -> JobView:
        """Freeze all containers of a job."""
        ...

    async def resume(self, name: str) -> JobView:
        """Thaw a paused job."""
        ...

    async def exec(
        self, name: str, request: ExecRequest, given: AsyncIterator[Typed | WindowSize]
    ) -> AsyncGenerator[ExecOutput | ExecEnd]:
        """Prepare a command in a rank of a job; it begins with the first item that is read."""
        ...

    async def prepare_image(self, request: PrepareRequest) -> PreparationView:
        """Begin to pull an image to servers, ahead of the jobs that need it."""
        ...

    async def bring_back(
        self, wanted: Allocation, *, dry_run: bool, wait_s: float
    ) -> AllocationDiffView:
        """Move every endpoint that is not where ``wanted`` says; ``dry_run`` only lists them."""
        ...

    async def make_plan(self, request: PlanRequest) -> PlanView:
        """Compute a regroup; changes nothing."""
        ...

    async def apply(self, plan: PlanView, wait_s: float) -> TransactionView:
        """Carry out a plan; return when it ended, at the latest after ``wait_s`` seconds."""
        ...

    async def roll_out(self, request: RolloutRequest) -> RolloutView:
        """Begin to carry a plan out in batches, one transaction each."""
        ...

    async def abort_rollout(self, ident: str) -> RolloutView:
        """Let no further batch of a rollout begin."""
        ...

    async def whatif(self, name: str, request: WhatIfRequest) -> WhatIfView:
        """Predict a running job's step with other homes; nothing moves."""
        ...

    async def abort(self, ident: str) -> TransactionView:
        """Ask a running transaction to roll back."""
        ...

    async def attach(self, endpoint: str, request: AttachRequest, wait_s: float) -> TransactionView:
        """Move one endpoint's light by hand, or darken it."""
        ...

    async def release(self, name: str) -> QuarantineView:
        """Put a port or an endpoint back into use."""
        ...

    async def remove_data(
        self, volume: str, owner: str, *, server: str | None, dry_run: bool
    ) -> DataRemovalView:
        """Remove what ``PROJECT`` or ``PROJECT.JOB`` left in a volume."""
        ...

    async def measure(self, request: MeasurementRequest, user: str = "") -> MeasurementView:
        """Begin a measurement of ``user``, or show what it would run."""
        ...

    async def import_measurement(
        self, request: MeasurementImport, user: str = ""
    ) -> MeasurementView:
        """Keep the result of another tool as a measurement."""
        ...

    async def cancel_measurement(self, ident: str) -> MeasurementView:
        """Stop a measurement; its jobs end and its light is put back."""
        ...

    async def remove_measurement(self, ident: str) -> MeasurementView:
        """Forget a measurement that has ended."""
        ...

    async def accept_store(self) -> HealthView:
        """Give up what the store, an older copy, does not know; return the health."""
        ...

    async def repair(self, switch: str) -> SwitchView:
        """Accept a switch's map as it is and restore all circuits that jobs lack."""
        ...

    async def verify_checkpoints(self, name: str, step: int | None) -> VerificationView:
        """Compare all parts of a job's checkpoints with their sums; of one step, or of all."""
        ...

    async def drop_checkpoint(self, name: str, step: int, *, force: bool) -> CheckpointsView:
        """Remove a step, the newest complete one only with ``force``; return what is left."""
        ...

    async def allocated(self, number: str) -> AllocationAnswerView:
        """Arrange the light of a job that another engine has just given endpoints."""
        ...

    async def drain(self, kind: DrainKind, name: str, *, now: bool) -> DrainView:
        """Take an object out of use; with ``now`` without waiting for a protected checkpoint."""
        ...

    async def undrain(self, kind: DrainKind, name: str) -> DrainView:
        """Put an object back into use; return the drain that ended."""
        ...
