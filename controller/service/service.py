"""The single owner of the state, and the loops that keep the fabric as intended.

Runs on one asyncio loop. Devices post events to it; nothing else mutates the state.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from secrets import token_hex
from typing import Any, Protocol

import structlog

from base import clock
from base.processes import Worker
from checkpoints.interval import Exposure
from controller.advice.desk import AdviceDesk
from controller.base.errors import ServiceError
from controller.base.tasks import Tasks
from controller.checkpoints.desk import CheckpointDesk
from controller.checkpoints.keeper import CheckpointKeeper
from controller.comms.desk import CommsDesk
from controller.comms.keeper import CommsKeeper
from controller.comms.latest import LatestResults
from controller.comms.measured import Measured
from controller.devices.aggregators import AggregatorConnected, AggregatorEvent, Aggregators
from controller.devices.checkpoints import CheckpointEngine
from controller.devices.engine import ExecutionEngine
from controller.devices.observed import ObservedEngine
from controller.devices.switches import Switches
from controller.fabric.intent import FabricIntent
from controller.fabric.mover import Mover
from controller.images.keeper import ImageKeeper
from controller.images.prepare import Preparations
from controller.jobs.keeper import JobKeeper
from controller.jobs.late_lines import LateLines
from controller.jobs.limits import TimeLimits
from controller.jobs.queue import QueueKeeper
from controller.jobs.recovery import JobRecovery
from controller.jobs.restarts import JobRestarter
from controller.jobs.watch import JobWatch
from controller.measurements.keeper import MeasurementKeeper
from controller.measurements.light import levels
from controller.measurements.runner import Parts
from controller.notices.courier import Courier
from controller.observed.desk import ObservedDesk
from controller.observed.fold import Rules
from controller.people.projects import SharedProjects
from controller.plans.allocation import AllocationFiles
from controller.plans.automatic import Regrouper
from controller.plans.planner import Planner
from controller.plans.rollout import RolloutDesk
from controller.ranks.calls import observe_containers
from controller.ranks.ends import JobEnder
from controller.ranks.secrets import SecretFolder
from controller.ranks.starter import RankStarter
from controller.reconcile.adopt import Adopter
from controller.reconcile.drift_policy import DriftPolicy
from controller.reconcile.interrupted import Interrupted
from controller.reconcile.links import LinkWatch
from controller.reconcile.quarantine import QuarantineKeeper
from controller.reconcile.watch import DriftWatch
from controller.service.data import DataDesk
from controller.service.desks import Desks
from controller.service.engines import EngineDesk
from controller.service.health import HealthDesk
from controller.service.images import ImageDesk
from controller.service.jobs import JobDesk
from controller.service.live import LiveDesk
from controller.state.intend import keys
from controller.state.journal import Journal
from controller.state.kept.failures import exposures, exposures_of
from controller.state.records import JobRecord
from controller.state.state import Connections, State
from controller.state.writes import PutFacts, TrimUsage
from controller.store.store import Store
from controller.stream.changes import Changes
from controller.stream.feed import Feed
from controller.stream.publisher import Publisher
from controller.swaps.desk import Parts as SwapParts
from controller.swaps.desk import SwapDesk
from controller.swaps.other_runs import OtherRuns
from controller.telemetry.light import OpticalPower
from controller.telemetry.printed import PrintedSteps
from controller.telemetry.stalls import StallWatch
from controller.telemetry.steps import FactsOf, Links, StepMeter
from controller.telemetry.throughput import Telemetry
from controller.views.fabric import FabricViews
from controller.views.health import HealthViews
from controller.views.jobs import JobViews
from controller.views.optics import Optics
from controller.views.recoveries import RecoveryViews
from controller.views.usage import UsageViews
from controller.views.volumes import VolumeViews
from controller.volumes.removal import DataRemover
from controller.volumes.watch import VolumeWatch
from measure.kinds import Kind
from measure.registry import KINDS
from scheduler.queue.model import Project
from sitefile import CabledSite

log = structlog.get_logger(__name__)

OBSERVE_EVERY_S = 1.0
FLUSH_EVERY_S = 1.0
TRIM_USAGE_EVERY_S = 60.0
LEAVE_TIMEOUT_S = 20.0
"""Longest wait for running transactions at the end; the next start completes the others."""
REPAIR_EVERY_S = 2.0
DRIFT_EVERY_S = 5.0
WATCH_EVERY_S = 1.0
TELL_AFTER_S = 2.0
"""Longest time that clients of the live stream wait for a recovery to end."""
SWITCHES_KNOWN_S = 5.0
"""Longest time that jobs wait at the start for switches that do not answer."""


class Engine(ExecutionEngine, CheckpointEngine, Protocol):
    """What the agents can do: ranks, and their checkpoints."""


class Service:
    """The controller's life: start, the loops, events of devices, stop.

    ``desks`` are what the API asks.
    """

    def __init__(  # noqa: PLR0915 - one statement for each part
        self,
        site: CabledSite,
        store: Store,
        *,
        switches: Callable[[Callable[[str, bool], None]], Switches],
        aggregators: Callable[[Callable[[AggregatorEvent], None]], Aggregators],
        engine: Engine,
        default_image: str,
        drift: DriftPolicy = DriftPolicy.REPAIR,
        history: Path | None = None,
        take_command: bool = False,
        projects: Callable[[], Iterable[Project]] | None = None,
        kinds: Mapping[str, Kind] = KINDS,
        facts: FactsOf | None = None,
        links: Links | None = None,
        observed: ObservedEngine | None = None,
        planner: Worker | None = None,
        clock: Callable[[], float] = clock.time,
    ) -> None:
        """Make ``switches`` and ``aggregators`` with the methods that receive their events.

        With ``take_command`` the agents obey this controller from now on, instead of any other.
        ``history`` is the folder of the telemetry's history; None keeps it in memory. ``projects``
        gives quotas and fair shares; None takes them from the site file. ``kinds`` are the types of
        measurement. ``facts`` tell of a job's steps, None what was recorded; ``links`` of measured
        links, None the latest measurement of them. ``observed`` is the engine that owns the jobs
        of some endpoints. ``planner`` is the process that computes plans, None a thread.
        """
        self._switches = switches(self._switch_changed)
        self._aggregators = aggregators(self._aggregator_event)
        self._engine = engine
        self._take = take_command
        self._state = State(
            site,
            store,
            clock,
            Connections(self._aggregators.connected, self._switches.connected, engine.reachable),
            projects or SharedProjects(site),
        )
        self._links = LinkWatch(self._state)
        self._tasks = Tasks()
        ender = JobEnder(self._state, self._aggregators, engine, self._tasks)
        images = ImageKeeper(self._state, engine, default_image)
        secrets = SecretFolder(site.secrets)
        self._checkpoints = CheckpointKeeper(self._state, engine, self._tasks)
        starter = RankStarter(
            self._state,
            engine,
            ender,
            images=images,
            checkpoints=self._checkpoints,
            secrets=secrets,
        )
        self._intent = FabricIntent(self._state, self._aggregators, engine)
        mover = Mover(
            self._state,
            self._switches,
            self._aggregators,
            engine,
            intent=self._intent,
            starter=starter,
            ender=ender,
            unresumed=self._unresumed,
            still=self._still,
        )
        self._other = (
            None
            if observed is None or site.engine is None
            else ObservedDesk(
                self._state,
                observed,
                engine,
                Rules(engine=observed.kind, endpoints=site.engine_endpoints),
                mover=mover,
                intent=self._intent,
                tasks=self._tasks,
                publishes=site.engine.publish,
                single=all(len(held) == 1 for held in site.engine.nodes.values()),
            )
        )
        self._jobs = JobKeeper(
            self._state,
            engine,
            self._tasks,
            mover=mover,
            intent=self._intent,
            starter=starter,
            ender=ender,
            images=images,
            default_image=default_image,
            lost_at_start=lambda name: self._restarter.lost_at_start(name),  # noqa: PLW0108 - as below
        )
        self._recovery = JobRecovery(
            self._state,
            engine,
            mover=mover,
            starter=starter,
            jobs=self._jobs,
            ender=ender,
            tasks=self._tasks,
            lost_at_start=lambda name: self._restarter.lost_at_start(name),  # noqa: PLW0108 - as below
        )
        self._queue = QueueKeeper(self._state, self._jobs)
        self._swaps = SwapDesk(
            SwapParts(
                state=self._state,
                engine=engine,
                aggregators=self._aggregators,
                switches=self._switches,
                tasks=self._tasks,
                mover=mover,
                intent=self._intent,
                starter=starter,
                ender=ender,
                images=images,
                checkpoints=self._checkpoints,
                queue=self._jobs,
                sent_bps=lambda endpoint: self._telemetry.rates(endpoint).tx_bps,
                communicates=lambda job: self._comms.communicates(job),  # noqa: PLW0108 - as below
            )
        )
        self._restarter = JobRestarter(self._state, ender, self._tasks, self._jobs, self._swaps)
        self._others = OtherRuns(self._state, engine, ender)
        self._watch = JobWatch(
            self._state,
            engine,
            ender,
            self._restarter,
            late=LateLines(self._state, engine, ender, self._tasks),
            others=self._others,
        )
        remover = DataRemover(self._state, engine)
        self._volumes = VolumeWatch(self._state, engine, remover)
        self._courier = Courier(self._state)
        self._limits = TimeLimits(self._state, ender, self._jobs.is_busy)
        self._interrupted = Interrupted(self._state)
        self._adopter = Adopter(
            self._state,
            self._switches,
            mover,
            self._intent,
            owed=self._interrupted.owed,
            dark=self._interrupted.dark,
        )
        self._drift = DriftWatch(
            self._state,
            self._intent,
            self._adopter,
            switches=self._switches,
            aggregators=self._aggregators,
            engine=engine,
            policy=drift,
        )
        self._power = OpticalPower(self._state, self._switches, history)
        self._feed = Feed()
        self._publisher = Publisher(
            self._state,
            Changes(
                self._state,
                self._aggregators,
                self._switches,
                self._power.latest,
                protected=self._checkpoints.protected,
                measurements=lambda: self._measurements.snapshots(),  # noqa: PLW0108 - it is made below
            ),
            self._feed,
        )
        self._telemetry = Telemetry(
            self._state,
            self._aggregators,
            engine,
            history,
            on_tick=self._publisher.publish_sample,
        )
        self._comms = CommsKeeper(self._state, engine)
        self._latest = LatestResults(self._state)
        self._printed = PrintedSteps(self._state, engine, facts or self._comms.facts)
        known = self._printed.facts
        self._meter = StepMeter(
            site,
            lambda endpoint: self._telemetry.rates(endpoint).tx_bps,
            facts=known,
            began=self._printed.began,
            links=links or self._latest.links,
        )
        self._advice = AdviceDesk(
            self._state,
            self._meter,
            telemetry=self._telemetry,
            power=self._power,
            facts=known,
            comms=self._comms.brief,
            waits=self._comms.input_wait,
            results=self._result,
        )
        self._plans = Planner(
            self._state,
            mover,
            aggregators=self._aggregators,
            switches=self._switches,
            tasks=self._tasks,
            meter=self._meter,
            applied=self._advice.planned,
            worker=planner,
        )
        self._rollouts = RolloutDesk(self._state, self._plans, mover, self._tasks)
        recoveries = RecoveryViews(self._state)
        self._regrouper = Regrouper(
            self._state,
            self._plans,
            self._meter,
            self._rollouts,
            blocked=lambda: self._other.blocked() if self._other else None,
        )
        self._stalls = StallWatch(self._state, self._telemetry.rates)
        self._measurements = MeasurementKeeper(
            Parts(
                state=self._state,
                engine=engine,
                jobs=self._jobs,
                images=images,
                plans=self._plans,
                telemetry=self._telemetry,
                facts=facts or self._comms.facts,
                links=links or self._latest.links,
                record=self._comms.read,
                finished=self._advice.measured,
                light=lambda endpoint: levels(self._state, self._power, endpoint),
            ),
            self._tasks,
            kinds,
        )
        fabric = FabricViews(self._state, self._aggregators, self._switches, self._telemetry)
        jobs = JobViews(
            self._state, self._telemetry, fabric, self._meter, protection=self._checkpoints
        )
        preparations = Preparations(self._state, images, self._tasks, lambda: token_hex(6))
        health = HealthViews(
            self._state, self._switches, self._adopter.settled, self._adopter.misplaced
        )
        self.desks = Desks(
            revision=lambda: self._state.epoch,
            jobs=JobDesk(self._state, engine, self._jobs, jobs, images=images, secrets=secrets),
            fabric=fabric,
            optics=Optics(site, self._switches, clock),
            live=LiveDesk(self._state, self._telemetry, self._power),
            health=HealthDesk(self._state, health),
            plans=self._plans,
            rollouts=self._rollouts,
            allocation=AllocationFiles(self._state, self._plans),
            drift=self._drift,
            quarantine=QuarantineKeeper(self._state, self._adopter, self._swaps.relight),
            drains=self._swaps.drains,
            checkpoints=CheckpointDesk(
                self._state,
                engine,
                self._checkpoints,
                step_s=self._step_s,
                restart_s=recoveries.restart_s,
                exposures=self._exposures,
            ),
            recoveries=recoveries,
            comms=CommsDesk(
                self._state,
                self._comms,
                Measured(self._state, self._latest, self._meter.measured_bytes_s),
            ),
            advice=self._advice,
            measurements=self._measurements,
            images=ImageDesk(engine, preparations),
            volumes=VolumeViews(self._state),
            data=DataDesk(remover),
            usage=UsageViews(self._state),
            engine=EngineDesk(
                self._other, "open" if site.engine is None else site.engine.isolation
            ),
            feed=self._feed,
        )
        self._taken_over = asyncio.Event()
        """Set when a device reconnects: it can be repaired now."""
        self.recovered = asyncio.Event()
        """Set when no transaction of an earlier controller is open."""

    def _exposures(self, job: JobRecord) -> list[tuple[int, Exposure]]:
        state = self._state
        rates = exposures(state.site, state.recoveries, state.clock())
        return exposures_of(job, state.light.homes(), state.cables, rates)

    def _step_s(self, job: JobRecord) -> float | None:
        facts = self._meter.current(job, self._state.light.homes())
        return None if facts is None else facts.step_s

    def _unresumed(self, name: str, why: str) -> None:
        job = self._state.jobs.get(name)
        if self._other is not None and job is not None and not job.ours:
            self._other.unresumed(name, why)
        else:
            self._restarter.unresumed(name, why)

    async def _still(self, job: JobRecord) -> None:
        if self._other is not None:
            await self._other.still(job)

    async def _result(self, ident: str) -> Mapping[str, Any] | None:
        return await self._measurements.result(ident)

    # --- life -----------------------------------------------------------------------------

    @property
    def moving(self) -> bool:
        """Whether a transaction is open: one of this controller, or of its predecessor."""
        return bool(self._interrupted) or bool(self._state.transactions.moving())

    @property
    def journal(self) -> Journal:
        """The journal of all durable data; it also keeps the answers to changes with a key."""
        return self._state.journal

    async def start(self) -> None:
        """Load the state, then start the loops that keep the fabric as intended."""
        loaded = await self._state.store.load()
        self._state.restore(loaded)
        self._interrupted.restore(loaded)
        self._state.light.spared = frozenset(
            self._state.cables.keys() - self._state.jobs.holders().keys()
        )
        await self._take_command(loaded.facts)
        self._switches.start()
        await self._intent.converge()
        self._tasks.keep("take over", self._take_over)
        self._tasks.keep("holdings", self._checkpoints.hearing.run)
        self._publisher.begin()
        self._tasks.keep("feed", self._publish)
        self._tasks.spawn(self._recover(), "recover")
        self._tasks.keep("telemetry", self._telemetry.run_counters)
        self._tasks.keep("samples", self._telemetry.run_samples)
        self._tasks.keep("power", self._power.run)
        self._courier.start(self._tasks)

    async def _take_command(self, facts: Mapping[str, str]) -> None:
        """Raise the term, so that agents refuse the calls of older controllers."""
        term = int(facts.get("term", "0")) + 1
        if self._take:  # higher than the term of any controller, which counts its starts
            term = max(term, int(self._state.clock()))
            self._state.took_command()
        await self._state.commit(PutFacts({"term": str(term)}), keys.FACTS, keys.UNKNOWN)
        self._engine.command(term)

    def hang_up(self) -> None:
        """Close all event streams."""
        self._feed.close()

    async def stop(self) -> None:
        """Wait for running transactions, then stop; containers, circuits and flows stay."""
        self.hang_up()
        running = [
            asyncio.ensure_future(r.ended.wait()) for r in self._state.transactions.running.values()
        ]
        if running:
            await asyncio.wait(running, timeout=LEAVE_TIMEOUT_S)
        await self._tasks.stop()
        await self._plans.close()
        if self._other is not None:
            await self._other.close()
        await self._switches.stop()
        await self._telemetry.flush()
        await self._power.flush()
        with contextlib.suppress(ServiceError):
            await self._state.journal.flush()

    async def _recover(self) -> None:
        """Start the job loops once the containers and the circuits are known."""
        await asyncio.gather(self._switches_read(), observe_containers(self._state, self._engine))
        await self._others.look()  # before a job is placed on endpoints that they hold
        self._recovery.begin()
        self._swaps.resume()
        self._rollouts.resume(self.recovered)
        self._limits.check()  # before the ends of ranks that a limit ended are seen
        self._state.ready = True
        if self._other is not None:
            self._other.start()
        self._measurements.begin()
        self._tasks.keep("observe", self._observe)
        self._tasks.keep("volumes", self._volumes.run)
        self._tasks.keep("comms", self._comms.run)
        self._tasks.keep("printed", self._printed.run)
        self._tasks.keep("measured results", self._latest.run)
        self._tasks.keep("removals", self._volumes.run_removals)
        self._tasks.keep("checkpoints", self._checkpoints.run)
        self._tasks.keep("removals of checkpoints", self._checkpoints.run_removals)
        self._tasks.keep("schedule", self._queue.run)
        self._tasks.keep("flush", self._flush)
        self._tasks.keep("usage", self._trim_usage)
        self._tasks.keep("repair", self._repair)
        self._tasks.keep("watch", self._watch_ourselves)
        self._tasks.keep("drift", self._look_for_drift)
        self._tasks.keep("regroup", self._regrouper.run)
        self._tasks.keep("predictions", self._advice.run)
        self._tasks.spawn(self._plans.warm_up(), "warm up the planner")

    async def _publish(self) -> None:
        """Publish changes, after interrupted transactions were repaired or TELL_AFTER_S passed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TELL_AFTER_S):
                await self.recovered.wait()
        await self._publisher.run()

    async def _switches_read(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SWITCHES_KNOWN_S):
                await self._switches.all_known()

    async def _observe(self) -> None:
        settled: frozenset[str] | None = None
        while True:
            await self._watch.observe()
            self._interrupted.release()
            self._stalls.check()
            await self._swaps.look()
            spared = self._state.light.spared
            if spared is not settled:  # no container needs their flows any more
                await self._intent.converge()
                settled = spared
            await asyncio.sleep(OBSERVE_EVERY_S)

    async def _flush(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_EVERY_S)
            self._state.usage.look(self._state.jobs)
            await self._state.journal.flush()

    async def _trim_usage(self) -> None:
        while True:
            await asyncio.sleep(TRIM_USAGE_EVERY_S)
            await self._state.commit(TrimUsage(self._state.usage.now))

    async def _repair(self) -> None:
        while True:
            self._taken_over.clear()
            if not self._state.suspect:
                await self._adopter.repair()
            if self._interrupted and self._adopter.settled(self._interrupted.owed):
                await self._interrupted.close(self._recovery.wake_up)
            if not self._interrupted:
                self.recovered.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPAIR_EVERY_S):
                    await self._taken_over.wait()

    async def _watch_ourselves(self) -> None:
        while True:
            self._drift.suspect()
            self._links.calm()
            self._limits.check()
            await asyncio.sleep(WATCH_EVERY_S)

    async def _look_for_drift(self) -> None:
        while True:
            await asyncio.sleep(DRIFT_EVERY_S)
            await self._drift.check()

    # --- events of devices ----------------------------------------------------------------

    def _switch_changed(self, switch: str, connected: bool) -> None:
        word = "SwitchConnected" if connected else "SwitchLost"
        text = "its circuits are being read" if connected else self._switches.error(switch)
        severity = "info" if connected else "error"
        self._state.events.add(severity, f"switch/{switch}", word, text)  # type: ignore[arg-type]
        if connected:
            self._tasks.spawn(self._adopted(switch), f"adopt {switch}")

    async def _adopted(self, switch: str) -> None:
        if await self._adopter.take_over(switch):
            self._adopter.unsettled.set()

    async def _take_over(self) -> None:
        """Make the circuits of reconnected switches durable, and converge the flows to them.

        At a start all switches connect at once: many share one durable write and one set of flows.
        """
        while True:
            await self._adopter.unsettled.wait()
            await self._adopter.settle()  # if it raises, the task restarts after a pause
            self._taken_over.set()

    def _aggregator_event(self, event: AggregatorEvent) -> None:
        self._links.take(event)
        if isinstance(event, AggregatorConnected):
            self._taken_over.set()
