"""What tests see of a controller, and its parts: no other module names them by private names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controller.advice.predictions import PredictionKeeper
from controller.base.tasks import Tasks
from controller.checkpoints.keeper import CheckpointKeeper
from controller.comms.keeper import CommsKeeper
from controller.comms.latest import LatestResults
from controller.devices.aggregators import AttachPoint, Forwarding
from controller.devices.switches import Switches
from controller.fabric.mover import Mover
from controller.jobs.keeper import JobKeeper
from controller.jobs.queue import QueueKeeper
from controller.jobs.watch import JobWatch
from controller.measurements.keeper import MeasurementKeeper
from controller.plans.automatic import Regrouper
from controller.plans.planner import Planner
from controller.plans.rollout import RolloutDesk
from controller.ranks.ends import JobEnder
from controller.ranks.starter import RankStarter
from controller.reconcile.adopt import Adopter
from controller.reconcile.interrupted import Interrupted
from controller.reconcile.watch import DriftWatch
from controller.service.service import Service
from controller.state.jobs import Jobs
from controller.state.journal import Journal
from controller.state.kept.checkpoints import Checkpoints
from controller.state.kept.comms import KeptComms
from controller.state.kept.drains import Drains
from controller.state.kept.measurements import Measurements
from controller.state.kept.predictions import Predictions
from controller.state.kept.recoveries import Recoveries
from controller.state.light import Light
from controller.state.notices import Outbox
from controller.state.state import State
from controller.state.transactions import Transactions
from controller.state.usage import UsageMeter
from controller.stream.publisher import FeedPublisher
from controller.swaps.desk import SwapDesk
from controller.swaps.first import FirstSteps
from controller.telemetry.light import OpticalPower
from controller.telemetry.steps import StepMeter
from controller.telemetry.throughput import Telemetry
from controller.volumes.removal import DataRemover
from controller.volumes.watch import VolumeWatch
from scheduler.model import Fabric
from sitefile.model import EndpointCable


def owes(journal: Journal) -> bool:
    """Whether something is not durable yet, or the outcome of a commit is unknown."""
    return bool(journal._owed) or journal._late is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a controller.

    A test lets one of them act at once, puts a fact into ``state``, or makes another part
    beside these. What it only reads, it reads by ``Sight``.
    """

    state: State
    tasks: Tasks
    switches: Switches
    jobs: JobKeeper
    starter: RankStarter
    ender: JobEnder
    queue: QueueKeeper
    watch: JobWatch
    mover: Mover
    swaps: SwapDesk
    first: FirstSteps
    checkpoints: CheckpointKeeper
    plans: Planner
    rollouts: RolloutDesk
    regrouper: Regrouper
    adopter: Adopter
    drift: DriftWatch
    interrupted: Interrupted
    volumes: VolumeWatch
    remover: DataRemover
    power: OpticalPower
    telemetry: Telemetry
    publisher: FeedPublisher
    comms: CommsKeeper
    latest: LatestResults
    meter: StepMeter
    predictions: PredictionKeeper
    measurements: MeasurementKeeper

    @classmethod
    def of(cls, service: Service) -> Parts:
        """Return the parts of a controller that is made, started or not."""
        features = service.features
        core, jobs, plans = features.core, features.jobs, features.plans
        figures, reconciled = features.figures, features.reconciled
        return cls(
            state=core.state,
            tasks=core.tasks,
            switches=core.switches,
            jobs=jobs.keeper,
            starter=core.starter,
            ender=core.ender,
            queue=jobs.queue,
            watch=jobs.watch,
            mover=core.mover,
            swaps=jobs.swaps,
            first=jobs.swaps._first,
            checkpoints=core.checkpoints,
            plans=plans.planner,
            rollouts=plans.rollouts,
            regrouper=plans.regrouper,
            adopter=reconciled.adopter,
            drift=reconciled.drift,
            interrupted=reconciled.interrupted,
            volumes=jobs.volumes,
            remover=jobs.remover,
            power=figures.power,
            telemetry=figures.telemetry,
            publisher=features.publisher,
            comms=figures.comms,
            latest=figures.latest,
            meter=figures.meter,
            predictions=plans.advice._keeper,
            measurements=features.measurements,
        )


class Sight:
    """A controller as a test reads it. Nothing is changed by it: that is for its ``Parts``."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._state = parts.state

    # --- the intent and what is known of the devices --------------------------------------------

    @property
    def jobs(self) -> Jobs:
        return self._state.jobs

    @property
    def light(self) -> Light:
        return self._state.light

    @property
    def transactions(self) -> Transactions:
        return self._state.transactions

    @property
    def recoveries(self) -> Recoveries:
        return self._state.recoveries

    @property
    def drains(self) -> Drains:
        return self._state.drains

    @property
    def measurements(self) -> Measurements:
        return self._state.measurements

    @property
    def predictions(self) -> Predictions:
        return self._state.predictions

    @property
    def checkpoints(self) -> Checkpoints:
        return self._state.checkpoints

    @property
    def comms(self) -> KeptComms:
        return self._state.comms

    @property
    def outbox(self) -> Outbox:
        return self._state.outbox

    @property
    def usage(self) -> UsageMeter:
        return self._state.usage

    @property
    def cables(self) -> Mapping[str, EndpointCable]:
        return self._state.cables

    @property
    def epoch(self) -> int:
        return self._state.epoch

    @property
    def ready(self) -> bool:
        return self._state.ready

    @property
    def suspect(self) -> str:
        return self._state.suspect

    @property
    def store_error(self) -> str:
        return self._state.store_error

    def now(self) -> float:
        """Return the controller's date."""
        return self._state.clock()

    def homes(self) -> Mapping[str, str | None]:
        return self._state.light.homes()

    def unavailable(self) -> Mapping[str, str]:
        return self._state.unavailable()

    def blocked_points(self) -> frozenset[AttachPoint]:
        return self._state.blocked_points()

    def forwarding(self) -> Forwarding:
        return self._state.forwarding()

    def fabric(self) -> Fabric:
        return self._state.fabric()

    def messages(self, reason: str) -> list[str]:
        """Return the messages of all events with this reason, oldest first."""
        return [e.message for e in self._state.events.newer(0) if e.reason == reason]

    # --- what is under way ----------------------------------------------------------------------

    @property
    def interrupted(self) -> bool:
        """Whether something is left of transactions that an earlier controller had begun."""
        return bool(self._parts.interrupted)

    @property
    def owes(self) -> bool:
        """Whether something is not durable yet, or the outcome of a commit is unknown."""
        return owes(self._state.journal)

    @property
    def writes(self) -> bool:
        """Whether something is owed to the store or is being written."""
        return self.owes or self._state.journal._writer is not None

    @property
    def owed(self) -> Mapping[str, AttachPoint | None]:
        """Where endpoints go back to that an interrupted transaction left elsewhere."""
        return self._parts.interrupted.owed

    @property
    def searches(self) -> bool:
        """Whether a plan is being searched for."""
        return self._parts.plans.busy

    def recovers(self, job: str) -> bool:
        """Whether a recovery of a job from lost hardware is under way."""
        return self._parts.swaps.swapper.has(job)

    def handles(self, job: str) -> bool:
        """Whether an order about a job is being carried out."""
        return self._parts.jobs.is_busy(job)

    def ends(self, job: str) -> bool:
        """Whether a job is being ended."""
        return self._parts.ender.is_ending(job)

    def news(self, job: str) -> int:
        """Return how often the facts of a job's steps were news where it runs now."""
        told = self._parts.meter._recorded.get(job)
        return 0 if told is None else told.news

    def dark(self) -> frozenset[str]:
        """Return the endpoints that are to get light again."""
        return frozenset(self._parts.adopter._wanted)

    def away(self, server: str) -> bool:
        """Whether the jobs' watch counts a server as silent."""
        return self._parts.watch._back_for.get(server) == 0

    def quiet(self) -> bool:
        """Whether no job and no light is being changed, and nothing is owed to the store."""
        state = self._state
        return not (
            state.transactions.running
            or self.interrupted
            or state.jobs.handled
            or state.light.held
            or self.owes
            or any(map(self.recovers, state.jobs))
        )
