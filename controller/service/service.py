"""The single owner of the state: a controller's start, its recovery and its end.

Runs on one asyncio loop. Devices post events to it; nothing else mutates the state.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from base import clock
from base.processes import Worker
from controller.base.errors import ServiceError
from controller.devices.aggregators import AggregatorEvent, Aggregators
from controller.devices.observed import ObservedEngine
from controller.devices.switches import Switches
from controller.ranks.calls import observe_containers
from controller.reconcile.drift_policy import DriftPolicy
from controller.service.core import Engine, core_of
from controller.service.desks import desks_of
from controller.service.features import Choices, Loops, features_of
from controller.service.upkeep import Upkeep
from controller.state.intend import keys
from controller.state.journal import Journal
from controller.state.writes import PutFacts
from controller.store.store import Store
from controller.telemetry.steps import FactsOf, Links
from measure.kinds import MeasurementKind
from measure.registry import KINDS
from scheduler.queue.model import ProjectShare
from sitefile import CabledSite

LEAVE_TIMEOUT_S = 20.0
"""Longest wait for running transactions at the end; the next start completes the others."""
TELL_AFTER_S = 2.0
"""Longest time that clients of the live stream wait for a recovery to end."""
SWITCHES_KNOWN_S = 5.0
"""Longest time that jobs wait at the start for switches that do not answer."""


class Service:
    """The controller's life: start, recovery, stop.

    ``desks`` are what the API asks.
    """

    def __init__(
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
        projects: Callable[[], Iterable[ProjectShare]] | None = None,
        kinds: Mapping[str, MeasurementKind] = KINDS,
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
        measurement. ``facts`` gives a job's steps, None what was recorded; ``links`` of measured
        links, None the latest measurement of them. ``observed`` is the engine that owns the jobs
        of some endpoints. ``planner`` is the process that computes plans, None a thread.
        """
        self._core = core_of(
            site,
            store,
            switches=switches(self._switch_changed),
            aggregators=aggregators(self._aggregator_event),
            engine=engine,
            default_image=default_image,
            projects=projects,
            clock=clock,
        )
        self._state = self._core.state
        self._take = take_command
        self.features = features_of(
            self._core,
            Choices(
                drift=drift,
                history=history,
                kinds=kinds,
                facts=facts,
                links=links,
                observed=observed,
                planner=planner,
            ),
        )
        self.desks = desks_of(self.features)
        self._upkeep = Upkeep(self.features)

    @property
    def recovered(self) -> asyncio.Event:
        """Set when no transaction of an earlier controller is open."""
        return self._upkeep.recovered

    @property
    def moving(self) -> bool:
        """Whether a transaction is open: one of this controller, or of its predecessor."""
        interrupted = self.features.reconciled.interrupted
        return bool(interrupted) or bool(self._state.transactions.moving())

    @property
    def journal(self) -> Journal:
        """The journal of all durable data; it also keeps the answers to changes with a key."""
        return self._state.journal

    async def start(self) -> None:
        """Load the state, then start the loops that keep the fabric as intended."""
        core, features = self._core, self.features
        loaded = await self._state.store.load()
        self._state.restore(loaded)
        features.reconciled.interrupted.restore(loaded)
        self._state.light.spared = frozenset(
            self._state.cables.keys() - self._state.jobs.holders().keys()
        )
        await self._take_command(loaded.facts)
        core.switches.start()
        await core.intent.converge()
        core.tasks.keep("take over", self._upkeep.take_over)
        core.tasks.keep("holdings", core.checkpoints.inbox.run)
        features.publisher.begin()
        core.tasks.keep("feed", self._publish)
        core.tasks.spawn(self._recover(), "recover")
        self._keep(features.figures.loops)
        features.courier.start(core.tasks)

    async def _take_command(self, facts: Mapping[str, str]) -> None:
        """Raise the term, so that agents refuse the calls of older controllers."""
        term = int(facts.get("term", "0")) + 1
        if self._take:  # higher than the term of any controller, which counts its starts
            term = max(term, int(self._state.clock()))
            self._state.took_command()
        await self._state.commit(PutFacts({"term": str(term)}), keys.FACTS, keys.UNKNOWN)
        self._core.engine.command(term)

    def hang_up(self) -> None:
        """Close all event streams."""
        self.features.feed.close()

    async def stop(self) -> None:
        """Wait for running transactions, then stop; containers, circuits and flows stay."""
        features = self.features
        self.hang_up()
        running = [
            asyncio.ensure_future(r.ended.wait()) for r in self._state.transactions.running.values()
        ]
        if running:
            await asyncio.wait(running, timeout=LEAVE_TIMEOUT_S)
        await self._core.tasks.stop()
        await features.plans.planner.close()
        for engine in features.engines.values():
            await engine.close()
        await self._core.switches.stop()
        await features.figures.flush()
        with contextlib.suppress(ServiceError):
            await self._state.journal.flush()

    async def _recover(self) -> None:
        """Start the job loops once the containers and the circuits are known."""
        core, features, jobs = self._core, self.features, self.features.jobs
        await asyncio.gather(self._switches_read(), observe_containers(self._state, core.engine))
        await jobs.others.check()  # before a job is placed on endpoints that they hold
        jobs.recovery.begin()
        jobs.swaps.resume()
        features.plans.rollouts.resume(self.recovered)
        jobs.limits.check()  # before the ends of ranks that a limit ended are seen
        self._state.ready = True
        for engine in features.engines.values():
            self._keep(engine.loops)
        features.measurements.begin()
        self._keep(self._upkeep.loops)
        self._keep(jobs.loops)
        self._keep(features.figures.loops_of_jobs)
        core.tasks.keep("checkpoints", core.checkpoints.run)
        core.tasks.keep("removals of checkpoints", core.checkpoints.run_removals)
        self._keep(features.plans.loops)
        core.tasks.spawn(features.plans.planner.warm_up(), "warm up the planner")

    def _keep(self, loops: Loops) -> None:
        for name, loop in loops.items():
            self._core.tasks.keep(name, loop)

    async def _publish(self) -> None:
        """Publish changes, after interrupted transactions were repaired or TELL_AFTER_S passed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TELL_AFTER_S):
                await self.recovered.wait()
        await self.features.publisher.run()

    async def _switches_read(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SWITCHES_KNOWN_S):
                await self._core.switches.all_known()

    def _switch_changed(self, switch: str, connected: bool) -> None:
        self._upkeep.switch_changed(switch, connected)

    def _aggregator_event(self, event: AggregatorEvent) -> None:
        self._upkeep.aggregator_event(event)
