"""Documents of endpoints, aggregators, switches, servers and events. Changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from controller.base.slices import in_slices
from controller.devices.aggregators import Aggregators, AttachPoint
from controller.devices.profile import Profile
from controller.devices.switches import Switches
from controller.schema.fabric import (
    AggregatorPortView,
    AggregatorView,
    CircuitView,
    EndpointView,
    EventView,
    NodeView,
    SiteView,
    SwitchView,
    UplinkView,
)
from controller.schema.jobs import GpuFiguresView
from controller.state.light import Standing
from controller.state.records import Event, JobRecord
from controller.state.state import State
from controller.telemetry.throughput import Telemetry
from controller.transaction.circuits import EndpointEnd, ends_on, is_ours
from readings.reading import Object
from sitefile import AggregatorCable, CabledSite, EndpointCable


class FabricViews:
    """Makes the views of the fabric."""

    def __init__(
        self,
        state: State,
        aggregators: Aggregators,
        switches: Switches,
        telemetry: Telemetry,
    ) -> None:
        self._state = state
        self._aggregators = aggregators
        self._switches = switches
        self._telemetry = telemetry
        self._far = _far_ends(state.site)
        self._ends = {cable.name: ends_on(state.site, cable.name) for cable in state.site.switches}
        """Per switch: what is cabled to each port, an endpoint or an aggregator's port."""
        self._on: dict[str, list[str]] = {server.name: [] for server in state.site.servers}
        """Per server: its endpoints."""
        for cable in state.site.endpoints:
            self._on[cable.server].append(cable.name)

    def endpoint_names(self) -> list[str]:
        """Return the endpoints' names, in the order of the site file."""
        return list(self._state.cables)

    async def endpoints(self, names: Sequence[str] | None = None) -> list[EndpointView]:
        """Return the endpoints of ``names``, or all in the order of the site file."""
        state = self._state
        standings = state.standings()
        ranks = {
            endpoint: (job, rank)
            for job in state.jobs.values()
            if job.holding
            for rank, endpoint in enumerate(job.endpoints)
        }
        cables = state.site.endpoints if names is None else [state.cables[name] for name in names]

        def view(cable: EndpointCable) -> EndpointView:
            return self._endpoint(cable, ranks.get(cable.name), standings[cable.name])

        return await in_slices(cables, view)

    def _endpoint(
        self,
        cable: EndpointCable,
        held: tuple[JobRecord, int] | None,
        standing: Standing,
    ) -> EndpointView:
        at = self._state.light.attachments.get(cable.name)
        job, rank = held or (None, None)
        rates = self._telemetry.rates(cable.name) if at else None
        sample = self._telemetry.sample(job.name, rank) if job and rank is not None else None
        values: Any = sample.values if sample else {}
        return EndpointView(
            name=cable.name,
            server=cable.server,
            kind=cable.kind,
            model=cable.model,
            memory_bytes=cable.memory_bytes,
            ip=cable.ip,
            mac=cable.mac,
            fiber=str(cable.fiber),
            home=at.aggregator if at else None,
            port=str(at) if at else None,
            state=standing.state,
            job=job.name if job else None,
            rank=rank,
            emulated=cable.emulated,
            reason=standing.reason,
            rx_bps=rates.rx_bps if rates else None,
            tx_bps=rates.tx_bps if rates else None,
            utilisation=values.get("utilisation"),
            source=sample.source if sample else None,
            memory_used_bytes=values.get("memory_bytes"),
            gpu=GpuFiguresView.model_validate(values) if sample and sample.real else None,
            unfit=self._state.light.unfit.get(cable.name, ""),
        )

    async def aggregators(self) -> list[AggregatorView]:
        """Return every aggregator with its ports."""
        holders = self._state.jobs.holders()
        under: dict[str, dict[int, str]] = {a.name: {} for a in self._state.site.aggregators}
        for endpoint, at in self._state.light.attachments.items():
            under[at.aggregator][at.port] = endpoint
        connected = self._aggregators.connected()
        uplinks = Counter(point.aggregator for point in self._state.light.uplink_points())

        def view(cable: AggregatorCable) -> AggregatorView:
            present = under[cable.name]
            size = len(cable.fibers) + len(cable.fixed)
            used = len(present) + uplinks[cable.name]
            jobs = {job.name for e in present.values() if (job := holders.get(e))}
            kept = self._state.light.profiles.get(cable.name)
            profile = kept.profile if kept else Profile()
            return AggregatorView(
                name=cable.name,
                dpid=f"{cable.dpid:#018x}",
                connected=cable.name in connected,
                size=size,
                used=used,
                free=size - used,
                endpoints=[present[port] for port in sorted(present)],
                jobs=sorted(jobs),
                model=profile.model,
                tables=profile.tables,
                metadata_bits=profile.metadata_bits,
                readings=self._readings(Object.AGGREGATOR, cable.name),
                ports=self._ports(cable, present, known=cable.name in connected),
            )

        return await in_slices(self._state.site.aggregators, view)

    def _ports(
        self, cable: AggregatorCable, present: dict[int, str], *, known: bool
    ) -> list[AggregatorPortView]:
        carrier = self._aggregators.carrier(cable.name) if known else {}
        views = []
        for port, (kind, other) in self._far[cable.name]:
            rates = self._telemetry.port_rates(AttachPoint(cable.name, port))
            views.append(
                AggregatorPortView(
                    port=port,
                    kind=kind,
                    far=other,
                    endpoint=present.get(port),
                    up=carrier.get(port),
                    quarantined=f"{cable.name}/{port}" in self._state.light.quarantine,
                    rx_bps=rates.rx_bps,
                    tx_bps=rates.tx_bps,
                    readings=self._readings(Object.PORT, f"{cable.name}/{port}"),
                )
            )
        return views

    def switches(self) -> list[SwitchView]:
        """Return every optical switch."""
        connected = self._switches.connected()
        views = []
        for cable in self._state.site.switches:
            seen = self._switches.last_map(cable.name)
            circuits = seen.circuits if seen else ()
            about = self._switches.capabilities(cable.name)
            views.append(
                SwitchView(
                    name=cable.name,
                    url=cable.url,
                    connected=cable.name in connected,
                    vendor=about.vendor if about else "",
                    model=about.model if about else "",
                    serial=about.serial if about else "",
                    firmware=about.firmware if about else "",
                    ports=len(self._ends[cable.name]),
                    circuits=len(circuits),
                    foreign_circuits=sum(not is_ours(c) for c in circuits),
                    error=self._switches.error(cable.name),
                    readings=self._readings(Object.SWITCH, cable.name),
                )
            )
        return views

    def circuits(self) -> list[CircuitView]:
        """Return the circuits of all switches from their latest reading."""
        views = []
        for cable in self._state.site.switches:
            ends = self._ends[cable.name]
            seen = self._switches.last_map(cable.name)
            for circuit in seen.circuits if seen else ():
                sides = [ends.get(circuit.a), ends.get(circuit.b)]
                endpoint = next((s.endpoint for s in sides if isinstance(s, EndpointEnd)), None)
                point = next((s for s in sides if isinstance(s, AttachPoint)), None)
                views.append(
                    CircuitView(
                        switch=cable.name,
                        a=circuit.a,
                        b=circuit.b,
                        duplex=circuit.duplex,
                        state=circuit.state.value,
                        name=circuit.name,
                        owner=circuit.owner,
                        endpoint=endpoint,
                        aggregator=point.aggregator if point else None,
                        aggregator_port=point.port if point else None,
                    )
                )
        return views

    def nodes(self) -> list[NodeView]:
        """Return every server."""
        answering = self._state.connections.servers()
        holders = self._state.jobs.holders()
        running = Counter(
            s.server for s in self._state.jobs.statuses if s.state.value in ("running", "paused")
        )
        return [
            NodeView(
                name=server.name,
                agent=server.agent,
                reachable=answering.get(server.name, False),
                endpoints=self._on[server.name],
                jobs=sorted({job.name for e in self._on[server.name] if (job := holders.get(e))}),
                containers=running[server.name],
                readings=self._readings(Object.SERVER, server.name),
            )
            for server in self._state.site.servers
        ]

    def _readings(self, kind: Object, name: str) -> Any:
        return self._telemetry.readings.of(kind, name)

    async def site(self) -> SiteView:
        """Return the cabled site with its present state."""
        site = self._state.site
        rates = site.emulation
        between = rates.inter_aggregator_bps if rates else None
        return SiteView(
            name=site.name,
            subnet=site.subnet,
            servers=[server.name for server in site.servers],
            endpoints=await self.endpoints(),
            aggregators=await self.aggregators(),
            switches=self.switches(),
            uplinks=[
                UplinkView(a=str(link.a), b=str(link.b), capacity_bps=between)
                for link in site.uplinks
            ],
            access_bps=rates.access_bps if rates else None,
            inter_aggregator_bps=between,
            engine=site.engine.kind if site.engine else None,
        )

    def events(self, since: int, limit: int) -> list[EventView]:
        """Return events above an id, oldest first."""
        return [event_view(event) for event in self._state.events.since(since, limit)]


def event_view(event: Event) -> EventView:
    """Return the view of one event."""
    return EventView(**{name: getattr(event, name) for name in Event.__slots__})


Far = tuple[Literal["fiber", "fixed", "uplink"], str]


def _far_ends(site: CabledSite) -> dict[str, list[tuple[int, Far]]]:
    """Return per aggregator its ports and what is cabled to each, sorted by port."""
    far: dict[str, dict[int, Far]] = {}
    for cable in site.aggregators:
        ports: dict[int, Far] = {port: ("fiber", str(to)) for port, to in cable.fibers.items()}
        ports |= {port: ("fixed", endpoint) for port, endpoint in cable.fixed.items()}
        far[cable.name] = ports
    for uplink in site.uplinks:
        for here, there in ((uplink.a, uplink.b), (uplink.b, uplink.a)):
            far[here.device][int(here.port)] = ("uplink", str(there))
    return {name: sorted(ports.items()) for name, ports in far.items()}
