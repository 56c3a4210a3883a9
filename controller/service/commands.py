"""The changes of the API: each runs on the loop of the service."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Hashable, Sequence
from contextlib import aclosing
from typing import Any

from controller.advice.desk import AdviceDesk
from controller.base.errors import ServiceError
from controller.devices.engine import ExecEnd, ExecOutput, ExecutionEngine, Typed, WindowSize
from controller.images.keeper import ImageKeeper
from controller.images.pins import pin_key
from controller.images.prepare import Preparations
from controller.jobs.keeper import JobKeeper
from controller.jobs.submission import Submission
from controller.measurements.keeper import MeasurementKeeper
from controller.plans.allocation import AllocationFiles
from controller.plans.planner import Planner
from controller.plans.rollout import RolloutDesk
from controller.ranks import execs
from controller.ranks.secrets import SecretFolder
from controller.reconcile.quarantine import QuarantineKeeper
from controller.reconcile.watch import DriftWatch
from controller.schema.checkpoints import (
    CheckpointsView,
    DrainKind,
    DrainView,
    VerificationView,
)
from controller.schema.engine import AllocationAnswerView
from controller.schema.execs import ExecRequest
from controller.schema.fabric import SwitchView
from controller.schema.images import PreparationView, PrepareRequest
from controller.schema.insight.advice import WhatIfRequest, WhatIfView
from controller.schema.insight.measurements import (
    MeasurementImport,
    MeasurementRequest,
    MeasurementView,
)
from controller.schema.jobs import JobRequest, JobView
from controller.schema.live import HealthView
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
from controller.schema.volumes import DataRemovalView
from controller.service.data import DataCommands
from controller.service.engines import EngineDesk
from controller.service.survival import CheckpointDesk, DrainDesk
from controller.state.records import JobRecord
from controller.state.state import State
from controller.views.fabric import FabricViews
from controller.views.health import HealthViews
from controller.views.jobs import JobViews


class Commands:
    """Changes jobs and the fabric. Raises ServiceError, nothing else."""

    def __init__(
        self,
        state: State,
        engine: ExecutionEngine,
        keeper: JobKeeper,
        *,
        images: ImageKeeper,
        preparations: Preparations,
        plans: Planner,
        rollouts: RolloutDesk,
        allocation: AllocationFiles,
        drift: DriftWatch,
        quarantine: QuarantineKeeper,
        data: DataCommands,
        fabric: FabricViews,
        jobs: JobViews,
        secrets: SecretFolder,
        measurements: MeasurementKeeper,
        advice: AdviceDesk,
        checkpoints: CheckpointDesk,
        drains: DrainDesk,
        engines: EngineDesk,
        health: HealthViews,
    ) -> None:
        self._state = state
        self._engine = engine
        self._keeper = keeper
        self._images = images
        self._preparations = preparations
        self._plans = plans
        self._rollouts = rollouts
        self._allocation = allocation
        self._drift = drift
        self._quarantine = quarantine
        self._data = data
        self._fabric = fabric
        self._jobs = jobs
        self._secrets = secrets
        self._measurements = measurements
        self._advice = advice
        self._checkpoints = checkpoints
        self._drains = drains
        self._engines = engines
        self._health = health

    async def submit(self, request: JobRequest, user: str = "") -> JobView:
        """Queue a job of ``user``."""
        (job,) = await self._submit([request], user)
        return self._jobs.job(job)

    async def submit_all(self, requests: Sequence[JobRequest], user: str = "") -> list[str]:
        """Queue jobs of ``user``, all or none; return their names."""
        return [job.name for job in await self._submit(requests, user)]

    async def _submit(self, requests: Sequence[JobRequest], user: str) -> list[JobRecord]:
        digests: dict[Hashable, str] = {}
        asked = []
        for request in requests:
            key = pin_key(request)
            if key not in digests:
                digests[key] = await self._images.pin_request(request)
            await self._secrets.check(request.project, request.secrets.values())
            asked.append(Submission(request, digests[key]))
        return await self._keeper.submit(asked, user)

    async def cancel(self, name: str) -> JobView:
        """Stop a job, or take it out of the queue."""
        return self._jobs.job(await self._keeper.cancel(name))

    async def pause(self, name: str) -> JobView:
        """Freeze all containers of a job."""
        return self._jobs.job(await self._keeper.pause(name))

    async def resume(self, name: str) -> JobView:
        """Thaw a paused job."""
        return self._jobs.job(await self._keeper.resume(name))

    async def exec(
        self, name: str, request: ExecRequest, given: AsyncIterator[Typed | WindowSize]
    ) -> AsyncGenerator[ExecOutput | ExecEnd]:
        """Prepare a command in a rank of a job; it begins with the first item that is read.

        It belongs to the job's present run, also when another job gets the name.
        """
        job = self._keeper.get(name)
        execs.start_of(self._state, job, request)
        return self._exec(job, request, given)

    async def _exec(
        self, prepared: JobRecord, request: ExecRequest, given: AsyncIterator[Typed | WindowSize]
    ) -> AsyncGenerator[ExecOutput | ExecEnd]:
        # The job may have been frozen, or have ended, since the command was prepared.
        job = self._keeper.get(prepared.name)
        execs.check_run(prepared, job)
        start = execs.start_of(self._state, job, request)
        async with aclosing(execs.run(self._engine, start, given)) as pieces:
            async for piece in pieces:
                yield piece

    async def prepare_image(self, request: PrepareRequest) -> PreparationView:
        """Begin to pull an image ahead of the jobs that need it."""
        return self._preparations.begin(request)

    async def make_plan(self, request: PlanRequest) -> PlanView:
        """Compute a regroup; changes nothing."""
        return await self._plans.make_plan(request)

    async def apply(self, plan: PlanView | dict[str, Any], wait_s: float) -> TransactionView:
        """Carry out a plan; return when it ended, at the latest after ``wait_s`` seconds."""
        return await self._plans.apply(plan, wait_s)

    async def roll_out(self, request: RolloutRequest) -> RolloutView:
        """Begin to carry a plan out in batches, one transaction each."""
        return await self._rollouts.begin(request)

    async def abort_rollout(self, ident: str) -> RolloutView:
        """Let no further batch of a rollout begin."""
        return await self._rollouts.abort(ident)

    async def whatif(self, name: str, request: WhatIfRequest) -> WhatIfView:
        """Predict a running job's step with other homes; nothing moves."""
        return await self._advice.whatif(name, request)

    async def abort(self, ident: str) -> TransactionView:
        """Ask a running transaction to roll back."""
        return self._plans.abort(ident)

    async def attach(self, endpoint: str, request: AttachRequest, wait_s: float) -> TransactionView:
        """Move one endpoint's light by hand, or darken it."""
        return await self._plans.attach(endpoint, request.aggregator, wait_s)

    async def release(self, name: str) -> QuarantineView:
        """Put a port or an endpoint back into use."""
        return await self._quarantine.release(name)

    async def remove_data(
        self, volume: str, owner: str, *, server: str | None, dry_run: bool
    ) -> DataRemovalView:
        """Remove what ``PROJECT`` or ``PROJECT.JOB`` left in a volume."""
        return await self._data.remove(volume, owner, server=server, dry_run=dry_run)

    async def verify_checkpoints(self, name: str, step: int | None) -> VerificationView:
        """Compare all parts of a job's checkpoints with their sums; of one step, or of all."""
        return await self._checkpoints.verify_checkpoints(name, step)

    async def drop_checkpoint(self, name: str, step: int, *, force: bool) -> CheckpointsView:
        """Remove a step, the newest complete one only with ``force``; return what is left."""
        await self._checkpoints.drop_checkpoint(name, step, force)
        return await self._checkpoints.checkpoints(name)

    async def allocated(self, number: str) -> AllocationAnswerView:
        """Arrange the light of a job that another engine has just given endpoints."""
        return await self._engines.allocated(number)

    async def drain(self, kind: DrainKind, name: str, *, now: bool) -> DrainView:
        """Take an object out of use; with ``now`` without waiting for a protected checkpoint."""
        return await self._drains.drain(kind, name, now=now)

    async def undrain(self, kind: DrainKind, name: str) -> DrainView:
        """Put an object back into use; return the drain that ended. ServiceError ``not_found``."""
        return await self._drains.undrain(kind, name)

    async def measure(self, request: MeasurementRequest, user: str = "") -> MeasurementView:
        """Begin a measurement of ``user``, or show what it would run."""
        return await self._measurements.start(request, user)

    async def import_measurement(
        self, request: MeasurementImport, user: str = ""
    ) -> MeasurementView:
        """Keep the result of another tool as a measurement."""
        return await self._measurements.take(request, user)

    async def cancel_measurement(self, ident: str) -> MeasurementView:
        """Stop a measurement; its jobs end and its light is put back."""
        return await self._measurements.cancel(ident)

    async def remove_measurement(self, ident: str) -> MeasurementView:
        """Forget a measurement that has ended."""
        return await self._measurements.remove(ident)

    async def repair(self, switch: str) -> SwitchView:
        """Accept a switch's map as it is and restore all circuits that jobs lack."""
        await self._drift.repair(switch)
        return next(view for view in self._fabric.switches() if view.name == switch)

    async def accept_store(self) -> HealthView:
        """Give up what the store, an older copy, does not know; return the health.

        ServiceError ``conflict`` when it is no older copy.
        """
        if not self._state.unknown:
            raise ServiceError(
                "conflict", "the store knows all that servers have", object="controller"
            )
        await self._state.accept_store()
        text = "an operator accepted it: what it does not know is given up"
        self._state.events.add("warning", "controller", "StoreAccepted", text)
        return self._health.health()

    async def bring_back(
        self, wanted: Allocation, *, dry_run: bool, wait_s: float
    ) -> AllocationDiffView:
        """Move every endpoint that is not where ``wanted`` says; ``dry_run`` only lists them."""
        return await self._allocation.bring_back(wanted, dry_run=dry_run, wait_s=wait_s)
