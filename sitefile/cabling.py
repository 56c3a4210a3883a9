"""Checks the cross-field rules of a site file and builds its cables as values.

All problems are collected, so that one run reports everything to correct.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from scheduler.queue.model import DEFAULT_PROJECT
from sitefile.engine import engine_of, engine_problems
from sitefile.errors import FileProblem
from sitefile.links import DEFAULT_OPTIC, links_of
from sitefile.logs import logs_of
from sitefile.model import (
    AggregatorCable,
    CabledSite,
    EmulatedVolume,
    Emulation,
    EndpointCable,
    Fiber,
    Port,
    Server,
    SwitchCable,
    Uplink,
)
from sitefile.notices import receiver_of
from sitefile.passwords import PasswordRef
from sitefile.recovery import recovery_of
from sitefile.registries import registries_of
from sitefile.scheduling import scheduling_of
from sitefile.schema import EmulationModel, SiteModel
from sitefile.volumes import users_of, volume_of

_GIB = 1024**3


class _Cabling:
    """Follows fibers and uplinks, and records the use of each port."""

    def __init__(self, model: SiteModel) -> None:
        self.endpoints = {e.name for e in model.endpoints}
        self.aggregators = {a.name for a in model.aggregators}
        self.switches = {s.name for s in model.switches}
        self.problems: list[FileProblem] = []
        self.endpoint_fiber: dict[str, Port] = {}
        self.fibers: dict[str, dict[int, Port]] = {a: {} for a in self.aggregators}
        self.fixed: dict[str, dict[int, str]] = {a: {} for a in self.aggregators}
        self._used: dict[Port, str] = {}

    def problem(self, path: str, message: str, fix: str) -> None:
        self.problems.append(FileProblem(path, message, fix))

    def end(self, path: str, text: str) -> Port | str | None:
        """Return an endpoint's name, a device's port, or None after recording the problem."""
        if "/" not in text:
            if text in self.endpoints:
                return text
            self.problem(
                path, f"{text!r} is not an endpoint", "add it to endpoints, or write device/port"
            )
            return None
        try:
            port = Port.parse(text)
        except ValueError as error:
            self.problem(path, str(error), "write device/port, for example ocs0/1.1.1")
            return None
        if port.device not in self.aggregators | self.switches:
            known = ", ".join(sorted(self.aggregators | self.switches))
            self.problem(
                path, f"fiber to an unknown device {port.device!r}", f"known devices: {known}"
            )
            return None
        if port.device in self.aggregators and not port.port.isdecimal():
            self.problem(
                path, f"{text!r}: an aggregator's port must be a number", "for example as0/4"
            )
            return None
        return port

    def use(self, port: Port, path: str) -> bool:
        """Mark ``port`` as used at ``path``; record a problem for a port used twice."""
        if port in self._used:
            self.problem(
                path,
                f"port {port} is used twice",
                f"first used at {self._used[port]}; pick another",
            )
            return False
        self._used[port] = path
        return True

    def fiber(self, path: str, a: str, b: str) -> None:
        ends = [self.end(path, a), self.end(path, b)]
        names = [e for e in ends if isinstance(e, str)]
        ports = [e for e in ends if isinstance(e, Port)]
        if len(names) + len(ports) < 2:
            return
        if len(names) == 2:
            self.problem(path, f"{a} and {b} are both endpoints", "connect each to a switch port")
        elif names:
            self._endpoint_fiber(path, names[0], ports[0])
        else:
            self._aggregator_fiber(path, ports)

    def _endpoint_fiber(self, path: str, endpoint: str, port: Port) -> None:
        if endpoint in self.endpoint_fiber:
            self.problem(
                path,
                f"endpoint {endpoint} has two fibers",
                f"it is already cabled to {self.endpoint_fiber[endpoint]}",
            )
            return
        if not self.use(port, path):
            return
        self.endpoint_fiber[endpoint] = port
        if port.device in self.aggregators:
            self.fixed[port.device][int(port.port)] = endpoint

    def _aggregator_fiber(self, path: str, ports: Sequence[Port]) -> None:
        electrical = [p for p in ports if p.device in self.aggregators]
        optical = [p for p in ports if p.device in self.switches]
        if len(electrical) != 1:
            fix = (
                "cables between aggregators go under uplinks"
                if electrical
                else "cross-connects are circuits, not fibers"
            )
            self.problem(
                path, f"{ports[0]} to {ports[1]} is not an endpoint or aggregator fiber", fix
            )
            return
        if all([self.use(electrical[0], path), self.use(optical[0], path)]):
            self.fibers[electrical[0].device][int(electrical[0].port)] = optical[0]

    def uplink(self, path: str, a: str, b: str) -> Uplink | None:
        ends = [self.end(path, a), self.end(path, b)]
        ports = [e for e in ends if isinstance(e, Port)]
        if len(ports) < 2:
            return None
        if (
            any(p.device not in self.aggregators for p in ports)
            or ports[0].device == ports[1].device
        ):
            self.problem(path, f"{a} to {b} does not join two aggregators", "give a port of each")
            return None
        if not all([self.use(ports[0], path), self.use(ports[1], path)]):
            return None
        return Uplink(*ports)


def cable(model: SiteModel) -> tuple[CabledSite | None, list[FileProblem]]:
    """Return the cabled site, or None with every problem found."""
    cabling = _Cabling(model)
    _unique(cabling, model)
    for index, (a, b) in enumerate(model.fibers):
        cabling.fiber(f"fibers[{index}]", a, b)
    uplinks = [
        cabling.uplink(f"uplinks[{index}]", a, b) for index, (a, b) in enumerate(model.uplinks)
    ]
    _references(cabling, model)
    _registries(cabling, model)
    _receivers(cabling, model)
    _spares(cabling, model)
    _engine(cabling, model)
    _optics(cabling, model)
    if cabling.problems:
        return None, cabling.problems
    emulation = _emulation(model.emulation) if model.emulation else None
    site = CabledSite(
        name=model.name,
        servers=tuple(Server(s.name, s.agent) for s in model.servers),
        endpoints=tuple(
            EndpointCable(
                name=e.name,
                server=e.server,
                ip=str(e.ip),
                prefix_len=model.subnet.prefixlen,
                fibers=(Fiber(e.nic, e.mac, cabling.endpoint_fiber[e.name]),),
                kind=e.kind,
                model=e.model,
                memory_bytes=int(e.memory_gib * _GIB),
                gpu_uuid=e.gpu_uuid,
                emulated=e.emulated,
                attach=e.attach,
                optic=e.optic,
            )
            for e in model.endpoints
        ),
        aggregators=tuple(
            AggregatorCable(
                name=a.name,
                dpid=a.dpid,
                fibers=cabling.fibers[a.name],
                fixed=cabling.fixed[a.name],
                tls=model.controller.openflow.tls if a.tls is None else a.tls,
                certificate=a.certificate,
                fingerprint=a.fingerprint,
                address=str(a.address) if a.address is not None else None,
                optic=a.optic,
            )
            for a in model.aggregators
        ),
        switches=tuple(
            SwitchCable(
                s.name, s.url, PasswordRef(**s.password.model_dump()) if s.password else None
            )
            for s in model.switches
        ),
        uplinks=tuple(u for u in uplinks if u is not None),
        homes=dict(model.homes),
        subnet=str(model.subnet),
        openflow_listen=model.controller.openflow.listen,
        openflow_netns=model.controller.openflow.netns,
        api_listen=model.controller.api,
        emulation=emulation,
        scheduling=scheduling_of(model.projects, model.queue, model.regroup),
        users=users_of(model.users, model.projects),
        volumes={name: volume_of(name, volume) for name, volume in model.volumes.items()},
        mtu=model.network.mtu,
        dscp=model.network.dscp,
        links=links_of(model.links),
        recording=model.recording,
        logs=logs_of(model.logs),
        registries=registries_of(model.registries),
        secrets=Path(model.secrets.directory) if model.secrets else None,
        notices=tuple(receiver_of(notice) for notice in model.notices),
        recovery=recovery_of(model.recovery),
        engine=engine_of(model.engine),
    )
    return site, []


def _receivers(cabling: _Cabling, model: SiteModel) -> None:
    projects = {DEFAULT_PROJECT, *(project.name for project in model.projects)}
    for i, notice in enumerate(model.notices):
        if model.projects and notice.project not in projects:
            text = f"unknown project {notice.project!r}"
            cabling.problem(f"notices[{i}].project", text, "add it to projects")


def _spares(cabling: _Cabling, model: SiteModel) -> None:
    known, seen = {endpoint.name for endpoint in model.endpoints}, set[str]()
    for i, name in enumerate(model.recovery.spares):
        path = f"recovery.spares[{i}]"
        if name not in known:
            cabling.problem(path, f"unknown endpoint {name!r}", "name one of endpoints")
        elif name in seen:
            cabling.problem(path, f"{name!r} is named twice", "name it once")
        seen.add(name)


def _engine(cabling: _Cabling, model: SiteModel) -> None:
    if model.engine is None:
        return
    servers = {endpoint.name: endpoint.server for endpoint in model.endpoints}
    spares = frozenset(model.recovery.spares)
    for path, message, fix in engine_problems(model.engine, servers, spares):
        cabling.problem(path, message, fix)


def _optics(cabling: _Cabling, model: SiteModel) -> None:
    known = {DEFAULT_OPTIC, *model.links.optics}
    if DEFAULT_OPTIC in model.links.optics:
        text = f"{DEFAULT_OPTIC!r} is the kind of links.up_s"
        cabling.problem("links.optics", text, "write its time as links.up_s")
    named = [(f"endpoints[{i}]", e.optic) for i, e in enumerate(model.endpoints)]
    named += [(f"aggregators[{i}]", a.optic) for i, a in enumerate(model.aggregators)]
    for path, optic in named:
        if optic not in known:
            cabling.problem(f"{path}.optic", f"unknown optic {optic!r}", "add it to links.optics")


def _emulation(model: EmulationModel) -> Emulation:
    volumes = {
        name: EmulatedVolume(volume.path, writable=volume.mode == "rw")
        for name, volume in model.volumes.items()
    }
    return Emulation(**model.model_dump(exclude={"volumes"}), volumes=volumes)


def _twice(cabling: _Cabling, kind: str, values: Iterable[tuple[str, str]]) -> None:
    seen: dict[str, str] = {}
    for path, value in values:
        if value in seen:
            cabling.problem(path, f"{kind} {value} is listed twice", f"first at {seen[value]}")
        seen.setdefault(value, path)


def _unique(cabling: _Cabling, model: SiteModel) -> None:
    """Check uniqueness: names share one namespace (device/port); one address per endpoint."""
    names = {
        "servers": [s.name for s in model.servers],
        "endpoints": [e.name for e in model.endpoints],
        "aggregators": [a.name for a in model.aggregators],
        "switches": [s.name for s in model.switches],
    }
    _twice(
        cabling,
        "name",
        (
            (f"{key}[{i}].name", name)
            for key, group in names.items()
            for i, name in enumerate(group)
        ),
    )
    ends = list(enumerate(model.endpoints))
    _twice(cabling, "ip", ((f"endpoints[{i}].ip", str(e.ip)) for i, e in ends))
    _twice(cabling, "mac", ((f"endpoints[{i}].mac", e.mac) for i, e in ends))
    _twice(cabling, "nic", ((f"endpoints[{i}].nic", f"{e.server}:{e.nic}") for i, e in ends))
    _twice(
        cabling, "agent", ((f"servers[{i}].agent", s.agent) for i, s in enumerate(model.servers))
    )
    _twice(
        cabling,
        "dpid",
        ((f"aggregators[{i}].dpid", str(a.dpid)) for i, a in enumerate(model.aggregators)),
    )
    _twice(
        cabling, "project", ((f"projects[{i}].name", p.name) for i, p in enumerate(model.projects))
    )
    for i, e in ends:
        if int(e.mac[:2], 16) & 1:
            cabling.problem(
                f"endpoints[{i}].mac",
                f"{e.mac} is a multicast address",
                "clear the lowest bit of the first octet",
            )


def _registries(cabling: _Cabling, model: SiteModel) -> None:
    known = {p.name for p in model.projects}
    for name, registry in model.registries.items():
        for project in registry.projects:
            if known and project not in known:
                cabling.problem(
                    f"registries.{name}.projects",
                    f"unknown project {project!r}",
                    "add it to projects",
                )


def _references(cabling: _Cabling, model: SiteModel) -> None:
    servers = {s.name for s in model.servers}
    for i, e in enumerate(model.endpoints):
        path = f"endpoints[{i}]"
        if e.server not in servers:
            cabling.problem(f"{path}.server", f"unknown server {e.server!r}", "add it to servers")
        hosts = model.subnet
        if e.ip not in hosts or e.ip in (hosts.network_address, hosts.broadcast_address):
            cabling.problem(
                f"{path}.ip",
                f"{e.ip} is not a host address of {hosts}",
                "pick one inside the subnet",
            )
        if e.name not in cabling.endpoint_fiber:
            cabling.problem(
                path,
                f"endpoint {e.name} has no fiber",
                f"add [{e.name}, <switch>/<port>] to fibers",
            )
    for i, a in enumerate(model.aggregators):
        pin = a.certificate or a.fingerprint
        if pin and a.tls is None and not model.controller.openflow.tls:
            text = f"{a.name} has a certificate but the site uses OpenFlow without TLS"
            cabling.problem(f"aggregators[{i}]", text, "add tls: true to it")
    _volume_projects(cabling, model)
    counts = {a: len(f) for a, f in cabling.fibers.items()}
    for endpoint, home in model.homes.items():
        path = f"homes.{endpoint}"
        if endpoint not in cabling.endpoints:
            cabling.problem(path, f"unknown endpoint {endpoint!r}", "correct the name")
        elif home not in cabling.aggregators:
            cabling.problem(path, f"unknown aggregator {home!r}", "correct the name")
        elif cabling.endpoint_fiber.get(endpoint, Port("", "")).device in cabling.aggregators:
            cabling.problem(
                path, f"{endpoint} is hard-wired", "remove the line; its cable is its home"
            )
        else:
            counts[home] -= 1
            if counts[home] < 0:
                cabling.problem(
                    path,
                    f"{home} has only {len(cabling.fibers[home])} optical ports",
                    "spread the homes",
                )


def _volume_projects(cabling: _Cabling, model: SiteModel) -> None:
    """Check that volumes name projects of the site; a site without a list accepts any."""
    known = {p.name for p in model.projects} | {DEFAULT_PROJECT}
    if not model.projects:
        return
    for name, volume in model.volumes.items():
        for i, project in enumerate(volume.projects):
            if project not in known:
                cabling.problem(
                    f"volumes.{name}.projects[{i}]",
                    f"unknown project {project!r}",
                    "add it to projects, or correct the name",
                )
