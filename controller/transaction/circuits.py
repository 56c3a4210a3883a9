"""Circuits and their two ends, and which circuits of which optical switch carry a set of homes.

Pure. A circuit joins an end (an endpoint's fiber, or an aggregator's port) to an aggregator's port.
A plan names aggregators; here it becomes ports. All free ports between one aggregator and one
optical switch are equal, so the matching is trivial: keep correct circuits, and take the lowest
free port for each endpoint that moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from controller.devices.aggregators import AttachPoint
from ocs_driver.base import GROUP, Circuit, CircuitMap
from sitefile import CabledSite, Port

Value = TypeVar("Value")


@dataclass(slots=True, frozen=True)
class EndpointEnd:
    """One fiber of an endpoint, written ``gpu2``, or ``gpu2#1`` for a second one."""

    endpoint: str
    fiber: int = 0
    """Its index among the endpoint's fibers."""

    def __str__(self) -> str:
        return f"{self.endpoint}#{self.fiber}" if self.fiber else self.endpoint


End = EndpointEnd | AttachPoint
"""The near end of a circuit, whose far one is an aggregator's port. With a port at both ends it
is an uplink, and the lesser port its near end."""


def end_of(text: str) -> End:
    """Return the end that is written so. ValueError."""
    aggregator, slash, port = text.partition("/")
    if slash:
        return AttachPoint(aggregator, int(port))
    endpoint, _, fiber = text.partition("#")
    return EndpointEnd(endpoint, int(fiber or "0"))


def endpoint_of(end: End) -> str:
    """Return the name of the endpoint at this end; empty for an aggregator's port."""
    return end.endpoint if isinstance(end, EndpointEnd) else ""


def of_endpoints(values: Mapping[End, Value]) -> dict[str, Value]:
    """Return the values of endpoints' ends, by the endpoints' names."""
    return {end.endpoint: v for end, v in values.items() if isinstance(end, EndpointEnd)}


def subject(end: End, point: AttachPoint | None) -> str:
    """Return what a circuit between them serves: ``endpoint/gpu2``, ``uplink/as0-4~as1-4``."""
    if isinstance(end, EndpointEnd):
        return f"endpoint/{end.endpoint}"
    ports = sorted(filter(None, (end, point)))
    return "uplink/" + "~".join(f"{p.aggregator}-{p.port}" for p in ports)


@dataclass(slots=True, frozen=True)
class Link:
    """One circuit and its meaning: port ``a`` leads to ``end``, port ``b`` to ``point``."""

    switch: str
    a: str
    b: str
    end: End
    point: AttachPoint

    @property
    def endpoint(self) -> str:
        """The endpoint that it attaches; empty for an uplink."""
        return endpoint_of(self.end)

    @property
    def name(self) -> str:
        """What a switch that keeps names calls it."""
        return subject(self.end, self.point).partition("/")[2]


@dataclass(slots=True, frozen=True)
class SwitchChange:
    """What one optical switch has to do: all deletes in one bulk, then all makes."""

    switch: str
    delete: tuple[Link, ...]
    make: tuple[Link, ...]

    def undone(self) -> SwitchChange:
        """Return the change that reverts this one."""
        return SwitchChange(self.switch, delete=self.make, make=self.delete)


@dataclass(slots=True, frozen=True)
class Rewiring:
    """Changes in the order of the switches, and every attachment as it is afterwards."""

    changes: tuple[SwitchChange, ...]
    attachments: Mapping[str, AttachPoint]


@dataclass(slots=True, frozen=True)
class Recognised:
    """What the circuits found on one switch mean."""

    circuits: Mapping[End, AttachPoint]
    """What the site's near ends lead to."""
    foreign: tuple[tuple[str, str], ...]
    """All other circuits; never touched."""
    taken_points: frozenset[AttachPoint]
    """Aggregator ports whose fiber a foreign circuit holds."""
    taken_endpoints: frozenset[str]
    """Endpoints whose fiber a foreign circuit holds."""

    @property
    def attachments(self) -> dict[str, AttachPoint]:
        """Where the endpoints are attached."""
        return of_endpoints(self.circuits)

    @property
    def uplinks(self) -> dict[AttachPoint, AttachPoint]:
        """The circuits between two aggregators, from the lesser port."""
        return {end: at for end, at in self.circuits.items() if isinstance(end, AttachPoint)}


class RewiringError(ValueError):
    """The moves cannot be cabled; ``object`` names the endpoint or aggregator."""

    def __init__(self, message: str, obj: str) -> None:
        super().__init__(message)
        self.object = obj


def fixed_attachments(site: CabledSite) -> dict[str, AttachPoint]:
    """Return where the hard-wired endpoints are."""
    return {
        endpoint: AttachPoint(aggregator.name, port)
        for aggregator in site.aggregators
        for port, endpoint in aggregator.fixed.items()
    }


def homes(site: CabledSite, attachments: Mapping[str, AttachPoint]) -> dict[str, str | None]:
    """Return each endpoint's home, None for a dark one, in site order."""
    return {
        e.name: attachments[e.name].aggregator if e.name in attachments else None
        for e in site.endpoints
    }


class Cabling:
    """The fibers of a site, indexed for repeated lookups."""

    def __init__(self, site: CabledSite) -> None:
        self._fibers: dict[End, Port] = {EndpointEnd(e.name): e.fiber for e in site.endpoints}
        self._aggregators = {a.name for a in site.aggregators}
        self._points: dict[tuple[str, str], list[AttachPoint]] = {}
        for aggregator in site.aggregators:
            for port, fiber in sorted(aggregator.fibers.items()):
                point = AttachPoint(aggregator.name, port)
                self._fibers[point] = fiber
                self._points.setdefault((aggregator.name, fiber.device), []).append(point)

    def link(self, end: End, point: AttachPoint) -> Link | None:
        """Return the circuit that joins ``end`` to ``point``.

        None when an endpoint is hard-wired, or the site no longer has one of the ends.
        """
        near, far = self._fibers.get(end), self._fibers.get(point)
        if near is None or far is None or far.device != near.device:
            return None
        return Link(near.device, near.port, far.port, end, point)

    def first_free(self, endpoint: str, target: str, taken: set[AttachPoint]) -> Link:
        """Return the circuit to the lowest free port of ``target``. RewiringError: none is free."""
        if target not in self._aggregators:
            raise RewiringError(f"the site has no aggregator {target}", target)
        end = EndpointEnd(endpoint)
        switch = self._fibers[end].device
        for point in self._points.get((target, switch), []):
            if point not in taken and (found := self.link(end, point)) is not None:
                return found
        raise RewiringError(f"{target} has no free port on {switch} for {endpoint}", target)


def ends_on(site: CabledSite, switch: str) -> dict[str, End]:
    """Return what is cabled to each port of an optical switch, endpoints first."""
    ends: dict[str, End] = {
        e.fiber.port: EndpointEnd(e.name) for e in site.endpoints if e.fiber.device == switch
    }
    for aggregator in site.aggregators:
        for port, far in aggregator.fibers.items():
            if far.device == switch:
                ends[far.port] = AttachPoint(aggregator.name, port)
    return ends


def recognise(site: CabledSite, switch: str, circuits: Iterable[tuple[str, str]]) -> Recognised:
    """Interpret the ``circuits`` (duplex, either orientation) of one optical switch."""
    ends = ends_on(site, switch)
    known: dict[End, AttachPoint] = {}
    foreign: list[tuple[str, str]] = []
    for a, b in circuits:
        match ends.get(a), ends.get(b):
            case (EndpointEnd() as end, AttachPoint() as at) | (
                AttachPoint() as at,
                EndpointEnd() as end,
            ):
                known[end] = at
            case AttachPoint() as one, AttachPoint() as other if one.aggregator != other.aggregator:
                known[min(one, other)] = max(one, other)
            case _:
                foreign.append((a, b))
    held = {ends[port] for pair in foreign for port in pair if port in ends}
    return Recognised(
        known,
        tuple(foreign),
        taken_points=frozenset(end for end in held if isinstance(end, AttachPoint)),
        taken_endpoints=frozenset(end.endpoint for end in held if isinstance(end, EndpointEnd)),
    )


def rewire(
    site: CabledSite,
    attachments: Mapping[str, AttachPoint],
    moves: Mapping[str, str | None],
    blocked: frozenset[AttachPoint] = frozenset(),
) -> Rewiring:
    """Return the circuits to delete and to make for all moves.

    ``moves`` names the target aggregator per endpoint, None to darken it; ``blocked`` are
    aggregator ports that must not be used (quarantine, foreign circuits, other transactions).
    RewiringError when an endpoint is hard-wired or its target has no free port.
    """
    cabling = Cabling(site)
    after = dict(attachments)
    delete: dict[str, list[Link]] = {}
    movers: list[tuple[str, str | None]] = []
    for endpoint in (e.name for e in site.endpoints if e.name in moves):
        target = moves[endpoint]
        at = attachments.get(endpoint)
        if (at.aggregator if at else None) == target and at not in blocked:
            continue
        movers.append((endpoint, target))
        if at is not None:
            old = cabling.link(EndpointEnd(endpoint), at)
            if old is None:
                raise RewiringError(f"{endpoint} is hard-wired to {at.aggregator}", endpoint)
            delete.setdefault(old.switch, []).append(old)
            del after[endpoint]
    make: dict[str, list[Link]] = {}
    taken = set(after.values()) | blocked
    for endpoint, target in movers:
        if target is None:
            continue
        new = cabling.first_free(endpoint, target, taken)
        make.setdefault(new.switch, []).append(new)
        after[endpoint] = new.point
        taken.add(new.point)
    changes = tuple(
        SwitchChange(s.name, tuple(delete.get(s.name, ())), tuple(make.get(s.name, ())))
        for s in site.switches
        if s.name in delete or s.name in make
    )
    return Rewiring(changes, after)


def without_ports(
    site: CabledSite,
    attachments: Mapping[str, AttachPoint],
    moves: Mapping[str, str | None],
    blocked: frozenset[AttachPoint] = frozenset(),
) -> dict[str, str]:
    """Return the moves that must be left out so that the others can be made, and why.

    The arguments are those of ``rewire``. The first of the moves come first; each may use the ports
    that those before it leave.
    """
    cabling, refused = Cabling(site), dict[str, str]()
    taken = set(attachments.values()) | blocked
    for endpoint, target in moves.items():
        at = attachments.get(endpoint)
        if (at.aggregator if at else None) == target and at not in blocked:
            continue
        if at is not None and cabling.link(EndpointEnd(endpoint), at) is None:
            refused[endpoint] = f"{endpoint} is hard-wired to {at.aggregator}"
            continue
        left = set() if at is None or at in blocked else {at}
        if target is not None:
            try:
                taken.add(cabling.first_free(endpoint, target, taken).point)
            except RewiringError as error:
                refused[endpoint] = str(error)
                continue
        taken -= left
    return refused


def changes_between(
    site: CabledSite,
    before: Mapping[End, AttachPoint | None],
    after: Mapping[End, AttachPoint | None],
) -> tuple[SwitchChange, ...]:
    """Return the circuits that lead from ``before`` to ``after``, which name the same ends.

    Endpoints and ports that the site no longer has are left out: an old log may name them.
    """
    cabling = Cabling(site)
    sides: list[dict[str, list[Link]]] = []
    for points in (before, after):
        links: dict[str, list[Link]] = {}
        for end, at in points.items():
            if at is None or before.get(end) == after.get(end):
                continue
            found = cabling.link(end, at)
            if found is not None:
                links.setdefault(found.switch, []).append(found)
        sides.append(links)
    delete, make = sides
    return tuple(
        SwitchChange(s.name, tuple(delete.get(s.name, ())), tuple(make.get(s.name, ())))
        for s in site.switches
        if s.name in delete or s.name in make
    )


def is_ours(circuit: Circuit) -> bool:
    """Whether a circuit is ours, as its driver reports; ours are always duplex."""
    return circuit.duplex and circuit.belongs_to(GROUP)


def ours(seen: CircuitMap) -> list[tuple[str, str]]:
    """Return the ends of our circuits."""
    return [(c.a, c.b) for c in seen.circuits if is_ours(c)]
