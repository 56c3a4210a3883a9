"""What people ask the controller to show: the half of the service that changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from controller.base.errors import ServiceError
from controller.people.authz import Owned
from controller.plans.allocation import AllocationFiles
from controller.plans.planner import Planner
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
from controller.schema.jobs import ContainerView
from controller.schema.live import (
    HealthView,
    PortPowerView,
    PowerSeriesView,
    SeriesView,
    TopView,
    TraceView,
)
from controller.schema.plans import Allocation, TransactionView
from controller.state.records import JobRecord
from controller.state.state import State
from controller.stream.feed import Cut, Feed, Reader
from controller.telemetry.light import OpticalPower
from controller.telemetry.throughput import Telemetry
from controller.views import light
from controller.views.fabric import FabricViews
from controller.views.health import HealthViews
from controller.views.jobs import JobViews
from controller.views.optics import Optics
from controller.views.series import series_of


class Looks:
    """Everything that can be looked at. The service makes the parts."""

    _state: State
    _show: FabricViews
    _show_jobs: JobViews
    _show_health: HealthViews
    _telemetry: Telemetry
    _power: OpticalPower
    _optics: Optics
    _plans: Planner
    _exchange: AllocationFiles
    _feed: Feed

    def __init__(self) -> None:
        self._owned: dict[str, tuple[JobRecord, Owned]] = {}
        self._owners: Mapping[str, Owned] = {}

    def endpoint_names(self) -> Sequence[str]:
        """Return the endpoints' names, in the order of the site file."""
        return list(self._state.cables)

    async def endpoints(self, names: Sequence[str] | None = None) -> list[EndpointView]:
        """Return every endpoint, in the order of the site file; with ``names`` only these."""
        return await self._show.endpoints(names)

    async def aggregators(self) -> list[AggregatorView]:
        """Return every aggregator."""
        return await self._show.aggregators()

    async def switches(self) -> list[SwitchView]:
        """Return every optical switch."""
        return self._show.switches()

    async def optics(self, switch: str) -> OpticsView:
        """Return the health of a switch's ports and its alarms, a few seconds old at most."""
        return await self._optics.read(switch)

    async def circuits(self) -> list[CircuitView]:
        """Return the circuits read back from all switches."""
        return self._show.circuits()

    async def containers(self) -> list[ContainerView]:
        """Return the containers the agents saw last."""
        return await self._show_jobs.containers()

    async def nodes(self) -> list[NodeView]:
        """Return every server."""
        return self._show.nodes()

    async def events(self, since: int, limit: int) -> list[EventView]:
        """Return at most ``limit`` events above id ``since``, oldest first; for 0 the latest."""
        return self._show.events(since, limit)

    async def top(self) -> TopView:
        """Return the live figures of the last second."""
        return await self._show_jobs.top()

    async def series(self, since_s: float, jobs: Collection[str] | None = None) -> SeriesView:
        """Return samples of the last ``since_s`` seconds, of ``jobs`` (None is all)."""
        telemetry = self._telemetry
        return await series_of(self._state, telemetry.history, since_s, telemetry.gpu_history, jobs)

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
        """Return the allocation as a file keeps it."""
        return self._exchange.export()

    async def transactions(self) -> list[TransactionView]:
        """Return the transactions that are kept, oldest first."""
        idents = [*self._state.finished, *self._state.running]
        return [self._plans.transaction(ident) for ident in idents]

    def watch(self, last_id: str | None, cut: Cut | None = None) -> Reader:
        """Follow everything that happens, from the frame after ``last_id`` on."""
        return self._feed.read(last_id, cut)

    def follow(self) -> Reader:
        """Follow everything that happens but the samples, as a part of the controller."""
        return self._feed.follow()

    def owners(self) -> Mapping[str, Owned]:
        """Return whose every job is, by name; the same object while nothing of it changed."""
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
        return await self._show.site()

    async def health(self) -> HealthView:
        """Return the controller's own state and the devices it talks to."""
        return self._show_health.health()
