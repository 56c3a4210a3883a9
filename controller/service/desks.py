"""Whom the API asks: for each feature the object that answers.

Every call runs on the daemon's loop and raises ``ServiceError``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from secrets import token_hex

from controller.advice.desk import AdviceDesk
from controller.checkpoints.desk import CheckpointDesk
from controller.comms.desk import CommsDesk
from controller.images.prepare import Preparations
from controller.measurements.keeper import MeasurementKeeper
from controller.plans.allocation import AllocationFiles
from controller.plans.planner import Planner
from controller.plans.rollout import RolloutDesk
from controller.reconcile.profiles import ProfileKeeper
from controller.reconcile.quarantine import QuarantineKeeper
from controller.reconcile.watch import DriftWatch
from controller.service.data import DataDesk
from controller.service.engines import EngineDesk
from controller.service.features import Features
from controller.service.health import HealthDesk
from controller.service.images import ImageDesk
from controller.service.jobs import JobDesk
from controller.service.live import LiveDesk
from controller.stream.feed import Feed
from controller.swaps.drains import DrainKeeper
from controller.views.fabric import FabricViews
from controller.views.health import HealthViews
from controller.views.jobs import JobViews
from controller.views.optics import Optics
from controller.views.recoveries import RecoveryViews
from controller.views.usage import UsageViews
from controller.views.volumes import VolumeViews


@dataclass(slots=True, frozen=True)
class Desks:
    """One field for each feature; a route asks the desks that it needs."""

    revision: Callable[[], int]
    jobs: JobDesk
    fabric: FabricViews
    optics: Optics
    live: LiveDesk
    health: HealthDesk
    plans: Planner
    rollouts: RolloutDesk
    allocation: AllocationFiles
    drift: DriftWatch
    quarantine: QuarantineKeeper
    drains: DrainKeeper
    profiles: ProfileKeeper
    checkpoints: CheckpointDesk
    recoveries: RecoveryViews
    comms: CommsDesk
    advice: AdviceDesk
    measurements: MeasurementKeeper
    images: ImageDesk
    volumes: VolumeViews
    data: DataDesk
    usage: UsageViews
    engine: EngineDesk
    feed: Feed

    @property
    def epoch(self) -> int:
        """Revision of the intent that the next answer shows."""
        return self.revision()


def desks_of(features: Features) -> Desks:
    """Return the desks of a controller."""
    core, figures, jobs, plans = features.core, features.figures, features.jobs, features.plans
    state, site = core.state, core.state.site
    fabric = FabricViews(state, core.aggregators, core.switches, figures.telemetry)
    views = JobViews(state, figures.telemetry, fabric, figures.meter, protection=core.checkpoints)
    adopter = features.reconciled.adopter
    health = HealthViews(state, core.switches, adopter.settled, adopter.misplaced)
    preparations = Preparations(state, core.images, core.tasks, lambda: token_hex(6))
    return Desks(
        revision=lambda: state.epoch,
        jobs=JobDesk(
            state, core.engine, jobs.keeper, views, images=core.images, secrets=core.secrets
        ),
        fabric=fabric,
        optics=Optics(site, core.switches, state.clock),
        live=LiveDesk(state, figures.telemetry, figures.power),
        health=HealthDesk(state, health),
        plans=plans.planner,
        rollouts=plans.rollouts,
        allocation=AllocationFiles(state, plans.planner),
        drift=features.reconciled.drift,
        quarantine=QuarantineKeeper(state, adopter, jobs.swaps.relight),
        drains=jobs.swaps.drains,
        profiles=features.reconciled.profiles,
        checkpoints=features.checkpoints,
        recoveries=features.recoveries,
        comms=features.comms,
        advice=plans.advice,
        measurements=features.measurements,
        images=ImageDesk(core.engine, preparations),
        volumes=VolumeViews(state),
        data=DataDesk(jobs.remover),
        usage=UsageViews(state),
        engine=EngineDesk(features.engines),
        feed=features.feed,
    )
