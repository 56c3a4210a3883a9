"""In-memory fakes of the three kinds of device, with the behaviour that the controller relies on.

The optical switch holds a map of circuits; the aggregators hold flow programs and answer a
probe only where the light leads and the program admits it; the engine holds containers.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    Callable,
    Iterable,
    Mapping,
)
from pathlib import Path

from base.processes import Worker
from controller.devices.aggregators import AggregatorEvent
from controller.devices.observed import ObservedEngine
from controller.devices.openflow.flows import FlowKeeper
from controller.devices.optical import SwitchBank
from controller.reconcile.drift_policy import DriftPolicy
from controller.service.desks import Desks
from controller.service.service import Service
from controller.store.store import Store
from controller.telemetry.steps import FactsOf, Links
from measure.kinds import MeasurementKind
from measure.registry import KINDS
from scheduler.queue.model import ProjectShare
from sitefile import CabledSite, load_site
from testbed.simulated.loop import settled
from tests.parts.controller.aggregators import FakeAggregators
from tests.parts.controller.disk import Disk
from tests.parts.controller.engine import FakeEngine
from tests.parts.controller.see import Parts, Sight
from tests.parts.controller.switch import FakeOcs
from tests.parts.sites import PAPER


class Rack:
    """A complete controller over the fakes ``switch``, ``aggregators`` and ``engine``."""

    aggregators_kind: type[FakeAggregators] = FakeAggregators

    def __init__(self, state_dir: Path, site: CabledSite | None = None) -> None:
        self.site = site or load_site(PAPER)
        self.state_dir = state_dir
        self.switch = FakeOcs()
        self.engine = FakeEngine(self.site)
        self.aggregators: FakeAggregators
        self.service: Service
        self.switch_changed: Callable[[str, bool], None]
        """Tells the controller that a switch has come or gone."""
        self.parts: Parts
        self.see: Sight
        self.store: Store
        self.disk: Disk
        self.observed: ObservedEngine | None = None
        """Another engine, which owns the jobs of some endpoints."""
        self.planner: Worker | None = None
        """The process that computes plans; None computes them inline."""

    @property
    def desks(self) -> Desks:
        """Whom the API asks."""
        return self.service.desks

    async def up(
        self,
        *,
        take_command: bool = False,
        projects: Callable[[], Iterable[ProjectShare]] | None = None,
        kinds: Mapping[str, MeasurementKind] = KINDS,
        facts: FactsOf | None = None,
        links: Links | None = None,
        drift: DriftPolicy = DriftPolicy.REPAIR,
    ) -> Service:
        """Start a controller on the fakes' present state; after ``down`` this is a restart."""
        self.store = Store(self.state_dir / "controller.sqlite")
        self.disk = Disk(self.store)

        def aggregators(post: Callable[[AggregatorEvent], None]) -> FlowKeeper:
            kept = self.aggregators.programs if hasattr(self, "aggregators") else {}
            self.aggregators = self.aggregators_kind(self.site, {"ocs0": self.switch}, post)
            self.aggregators.programs = kept  # flow tables outlive the controller
            self.aggregators.engine = self.engine
            self.flows = FlowKeeper(self.site, self.aggregators)
            return self.flows

        def switches(on_change: Callable[[str, bool], None]) -> SwitchBank:
            self.switch_changed = on_change
            return SwitchBank({"ocs0": self.switch}, on_change)

        self.service = Service(
            self.site,
            self.store,
            switches=switches,
            aggregators=aggregators,
            engine=self.engine,
            default_image="image:1",
            take_command=take_command,
            projects=projects,
            kinds=kinds,
            facts=facts,
            links=links,
            observed=self.observed,
            planner=self.planner,
            drift=drift,
        )
        self.parts = Parts.of(self.service)
        self.see = Sight(self.parts)
        await self.service.start()
        await self.until(self.whole)
        return self.service

    async def whole(self) -> bool:
        return self.desks.health.health().status == "ok"

    async def down(self) -> None:
        self.disk.release()
        await self.service.stop()
        await self.store.close()

    async def until(self, condition: Callable[[], object], limit_s: float = 60.0) -> None:
        """Wait until ``condition``, a function or a coroutine function, returns a true value."""
        async with asyncio.timeout(limit_s):
            while True:
                value = condition()
                if asyncio.iscoroutine(value):
                    value = await value
                if value:
                    return
                await settled()

    async def state(self, job: str, *states: str) -> None:
        """Wait until the job is in one of ``states``."""

        async def reached() -> bool:
            return self.desks.jobs.job(job).state in states

        await self.until(reached)


async def crash(rack: Rack) -> None:
    """Stop the controller without any cleanup, as SIGKILL does."""
    await rack.parts.tasks.stop()
    await rack.parts.switches.stop()
    rack.disk.release()  # pending writes complete, and the next controller has a healthy disk
    await rack.store.close()
