"""The features of the controller, each with its parts and its loops, made in order.

A feature uses the core and the features above it in this file. Where one made earlier has to
report to a later one, it has a method for that (``report_to``), called where the later one is made.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from base.processes import Worker
from checkpoints.interval import Exposure
from controller.advice.desk import AdviceDesk
from controller.checkpoints.desk import CheckpointDesk
from controller.comms.desk import CommsDesk
from controller.comms.keeper import CommsKeeper
from controller.comms.latest import LatestResults
from controller.comms.measured import Measured
from controller.devices.observed import ObservedEngine
from controller.jobs.keeper import JobKeeper
from controller.jobs.late_lines import LateLines
from controller.jobs.limits import TimeLimits
from controller.jobs.queue import QueueKeeper
from controller.jobs.recovery import JobRecovery
from controller.jobs.restarts import JobRestarter
from controller.jobs.watch import JobWatch
from controller.measurements.keeper import MeasurementKeeper, stored_result
from controller.measurements.light import levels
from controller.measurements.runner import MeasurementParts
from controller.notices.courier import Courier
from controller.observed.desk import ObservedDesk
from controller.plans.automatic import Regrouper
from controller.plans.planner import Planner
from controller.plans.rollout import RolloutDesk
from controller.reconcile.adopt import Adopter
from controller.reconcile.drift_policy import DriftPolicy
from controller.reconcile.interrupted import Interrupted
from controller.reconcile.links import LinkWatch
from controller.reconcile.profiles import ProfileKeeper
from controller.reconcile.watch import DriftWatch
from controller.service.core import Core
from controller.state.kept.failures import exposures, exposures_of
from controller.state.records import JobRecord
from controller.state.state import State
from controller.stream.changes import Changes
from controller.stream.feed import Feed
from controller.stream.publisher import FeedPublisher
from controller.swaps.desk import SwapDesk, SwapParts
from controller.swaps.other_runs import OtherRuns
from controller.telemetry.light import OpticalPower
from controller.telemetry.printed import PrintedSteps
from controller.telemetry.stalls import StallWatch
from controller.telemetry.steps import FactsOf, Links, StepMeter
from controller.telemetry.throughput import Telemetry
from controller.views.recoveries import RecoveryViews
from controller.volumes.removal import DataRemover
from controller.volumes.watch import VolumeWatch
from measure.kinds import MeasurementKind

Loops = Mapping[str, Callable[[], Coroutine[Any, Any, None]]]
"""Coroutines that run for as long as the controller does, by name."""

Engines = Mapping[str, ObservedDesk]
"""The owners of other engines' jobs, by kind; none on a site without such an engine."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Figures:
    """What is measured all the time: traffic, light, steps and what jobs communicate."""

    power: OpticalPower
    telemetry: Telemetry
    comms: CommsKeeper
    latest: LatestResults
    printed: PrintedSteps
    meter: StepMeter
    stalls: StallWatch
    facts: FactsOf
    """A job's steps as its recorder counts them."""
    links: Links

    @classmethod
    def of(
        cls, core: Core, history: Path | None, facts: FactsOf | None, links: Links | None
    ) -> Figures:
        """Keep the history in a folder, or in memory; see ``Service`` for the arguments."""
        telemetry = Telemetry(core.state, core.aggregators, core.engine, history)
        comms, latest = CommsKeeper(core.state, core.engine), LatestResults(core.state)
        facts, links = facts or comms.facts, links or latest.links
        printed = PrintedSteps(core.state, core.engine, facts)
        return cls(
            power=OpticalPower(core.state, core.switches, telemetry.readings, history),
            telemetry=telemetry,
            comms=comms,
            latest=latest,
            printed=printed,
            meter=StepMeter(
                core.state.site,
                telemetry.sent_bps,
                facts=printed.facts,
                began=printed.began,
                links=links,
            ),
            stalls=StallWatch(core.state, telemetry.rates),
            facts=facts,
            links=links,
        )

    @property
    def loops(self) -> Loops:
        """What needs no container to be known."""
        return {
            "telemetry": self.telemetry.run_counters,
            "samples": self.telemetry.run_samples,
            "power": self.power.run,
        }

    @property
    def loops_of_jobs(self) -> Loops:
        """What reads from the ranks of jobs."""
        return {
            "comms": self.comms.run,
            "printed": self.printed.run,
            "measured results": self.latest.run,
        }

    async def flush(self) -> None:
        """Write the history."""
        await self.telemetry.flush()
        await self.power.flush()


@dataclass(slots=True, frozen=True, kw_only=True)
class JobServices:
    """The life of jobs, with their recovery from lost hardware and what they leave."""

    keeper: JobKeeper
    recovery: JobRecovery
    queue: QueueKeeper
    swaps: SwapDesk
    others: OtherRuns
    watch: JobWatch
    limits: TimeLimits
    volumes: VolumeWatch
    remover: DataRemover

    @classmethod
    def of(cls, core: Core, figures: Figures, engines: Engines) -> JobServices:
        """Make them; ``engines`` own the other jobs."""
        state, engine, ender = core.state, core.engine, core.ender
        keeper = JobKeeper(
            state,
            engine,
            core.tasks,
            mover=core.mover,
            intent=core.intent,
            starter=core.starter,
            ender=ender,
            images=core.images,
            default_image=core.default_image,
        )
        swaps = SwapDesk(
            SwapParts(
                state=state,
                engine=engine,
                aggregators=core.aggregators,
                switches=core.switches,
                tasks=core.tasks,
                mover=core.mover,
                intent=core.intent,
                starter=core.starter,
                ender=ender,
                images=core.images,
                checkpoints=core.checkpoints,
                queue=keeper,
                sent_bps=figures.telemetry.sent_bps,
                communicates=figures.comms.communicates,
            )
        )
        restarter = JobRestarter(state, ender, core.tasks, keeper, swaps)
        keeper.report_to(restarter.lost_at_start)
        core.mover.report_to(_Owners(state.jobs, restarter, engines))
        others = OtherRuns(state, engine, ender)
        remover = DataRemover(state, engine)
        return cls(
            keeper=keeper,
            recovery=JobRecovery(
                state,
                engine,
                starter=core.starter,
                jobs=keeper,
                ender=ender,
                tasks=core.tasks,
                lost_at_start=restarter.lost_at_start,
            ),
            queue=QueueKeeper(state, keeper),
            swaps=swaps,
            others=others,
            watch=JobWatch(
                state,
                engine,
                ender,
                restarter,
                late=LateLines(state, engine, ender, core.tasks),
                others=others,
            ),
            limits=TimeLimits(state, ender, keeper.is_busy),
            volumes=VolumeWatch(state, engine, remover),
            remover=remover,
        )

    @property
    def loops(self) -> Loops:
        """What goes on once containers are known."""
        return {
            "volumes": self.volumes.run,
            "removals": self.volumes.run_removals,
            "schedule": self.queue.run,
        }


@dataclass(slots=True, frozen=True)
class _Owners:
    """The owners of jobs, as transactions use them."""

    jobs: Mapping[str, JobRecord]
    queue: JobRestarter
    engines: Engines

    def unresumed(self, name: str, why: str) -> None:
        """Take over a job whose ranks could not be resumed."""
        job = self.jobs.get(name)
        engine = None if job is None else self.engines.get(job.owner.engine)
        (engine or self.queue).unresumed(name, why)

    async def still(self, job: JobRecord) -> None:
        """Check that a job of another engine is still there."""
        if (engine := self.engines.get(job.owner.engine)) is not None:
            await engine.still(job)


@dataclass(slots=True, frozen=True, kw_only=True)
class Reconciled:
    """The world against the intent."""

    links: LinkWatch
    profiles: ProfileKeeper
    interrupted: Interrupted
    adopter: Adopter
    drift: DriftWatch

    @classmethod
    def of(cls, core: Core, policy: DriftPolicy) -> Reconciled:
        """Make them; ``policy`` decides what becomes of drift."""
        interrupted = Interrupted(core.state)
        adopter = Adopter(
            core.state,
            core.switches,
            core.mover,
            core.intent,
            owed=interrupted.owed,
            dark=interrupted.dark,
        )
        drift = DriftWatch(
            core.state,
            core.intent,
            adopter,
            switches=core.switches,
            aggregators=core.aggregators,
            engine=core.engine,
            policy=policy,
        )
        return cls(
            links=LinkWatch(core.state),
            profiles=ProfileKeeper(core.state, core.aggregators, core.tasks),
            interrupted=interrupted,
            adopter=adopter,
            drift=drift,
        )


@dataclass(slots=True, frozen=True, kw_only=True)
class Plans:
    """What would help jobs, and its carrying out."""

    advice: AdviceDesk
    planner: Planner
    rollouts: RolloutDesk
    regrouper: Regrouper

    @classmethod
    def of(cls, core: Core, figures: Figures, engines: Engines, worker: Worker | None) -> Plans:
        """Make them; ``worker`` is the process that computes plans, None a thread."""
        state, meter = core.state, figures.meter
        advice = AdviceDesk(
            state,
            meter,
            telemetry=figures.telemetry,
            power=figures.power,
            facts=figures.printed.facts,
            comms=figures.comms.brief,
            waits=figures.comms.input_wait,
            results=partial(stored_result, state),
        )
        planner = Planner(
            state,
            core.mover,
            aggregators=core.aggregators,
            switches=core.switches,
            tasks=core.tasks,
            meter=meter,
            applied=advice.planned,
            worker=worker,
        )
        rollouts = RolloutDesk(state, planner, core.mover, core.tasks)
        regrouper = Regrouper(
            state,
            planner,
            meter,
            rollouts,
            blocked=lambda: next(filter(None, (one.blocked() for one in engines.values())), None),
        )
        return cls(advice=advice, planner=planner, rollouts=rollouts, regrouper=regrouper)

    @property
    def loops(self) -> Loops:
        """What goes on once containers are known."""
        return {"regroup": self.regrouper.run, "predictions": self.advice.run}


@dataclass(slots=True, frozen=True, kw_only=True)
class Features:
    """All features of a controller."""

    core: Core
    figures: Figures
    engines: Engines
    jobs: JobServices
    reconciled: Reconciled
    plans: Plans
    measurements: MeasurementKeeper
    recoveries: RecoveryViews
    checkpoints: CheckpointDesk
    comms: CommsDesk
    courier: Courier
    feed: Feed
    publisher: FeedPublisher


@dataclass(slots=True, frozen=True, kw_only=True)
class Choices:
    """What a controller is started with, beside its site and its devices; see ``Service``."""

    drift: DriftPolicy
    history: Path | None
    kinds: Mapping[str, MeasurementKind]
    facts: FactsOf | None
    links: Links | None
    observed: ObservedEngine | None
    planner: Worker | None


def features_of(core: Core, choices: Choices) -> Features:
    """Make all features in order."""
    state = core.state
    figures = Figures.of(core, choices.history, choices.facts, choices.links)
    engines = _engines(core, choices.observed)
    jobs = JobServices.of(core, figures, engines)
    reconciled = Reconciled.of(core, choices.drift)
    plans = Plans.of(core, figures, engines, choices.planner)
    measurements = MeasurementKeeper(
        MeasurementParts(
            state=state,
            engine=core.engine,
            jobs=jobs.keeper,
            images=core.images,
            plans=plans.planner,
            telemetry=figures.telemetry,
            facts=figures.facts,
            links=figures.links,
            record=figures.comms.read,
            finished=plans.advice.measured,
            light=partial(levels, state, figures.power),
        ),
        core.tasks,
        choices.kinds,
    )
    recoveries, feed = RecoveryViews(state), Feed()
    publisher = FeedPublisher(
        state,
        Changes(
            state,
            core.aggregators,
            core.switches,
            figures.power.latest,
            protected=core.checkpoints.protected,
            measurements=measurements.snapshots,
        ),
        feed,
    )
    figures.telemetry.report_to(publisher.publish_sample)
    return Features(
        core=core,
        figures=figures,
        engines=engines,
        jobs=jobs,
        reconciled=reconciled,
        plans=plans,
        measurements=measurements,
        recoveries=recoveries,
        checkpoints=CheckpointDesk(
            state,
            core.engine,
            core.checkpoints,
            step_s=partial(_step_s, state, figures.meter),
            restart_s=recoveries.restart_s,
            exposures=partial(_exposures, state),
        ),
        comms=CommsDesk(
            state,
            figures.comms,
            Measured(state, figures.latest, figures.meter.measured_bytes_s),
        ),
        courier=Courier(state),
        feed=feed,
        publisher=publisher,
    )


def _engines(core: Core, observed: ObservedEngine | None) -> Engines:
    site = core.state.site
    if observed is None or site.engine is None:
        return {}
    desk = ObservedDesk(
        core.state,
        observed,
        core.engine,
        site.engine,
        mover=core.mover,
        intent=core.intent,
        tasks=core.tasks,
    )
    return {observed.kind: desk}


def _step_s(state: State, meter: StepMeter, job: JobRecord) -> float | None:
    facts = meter.current(job, state.light.homes())
    return None if facts is None else facts.step_s


def _exposures(state: State, job: JobRecord) -> list[tuple[int, Exposure]]:
    rates = exposures(state.site, state.recoveries, state.clock())
    return exposures_of(job, state.light.homes(), state.cables, rates)
