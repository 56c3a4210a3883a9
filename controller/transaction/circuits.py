"""Maps homes to circuits: which circuits of which optical switch carry a set of attachments.

Pure. A plan names aggregators; here it becomes ports. All free ports between one aggregator
and one optical switch are equal, so the matching is trivial: keep correct circuits, and take the
lowest free port for each endpoint that moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controller.devices.aggregators import AttachPoint
from ocs_driver.base import GROUP, Circuit, CircuitMap
from sitefile import CabledSite


@dataclass(slots=True, frozen=True)
class Link:
    """One circuit and its meaning: ``a`` is the endpoint's fiber, ``b`` the aggregator's."""

    switch: str
    a: str
    b: str
    endpoint: str
    aggregator: str
    port: int

    @property
    def point(self) -> AttachPoint:
        """Where the endpoint is attached when this circuit is up."""
        return AttachPoint(self.aggregator, self.port)


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

    attachments: Mapping[str, AttachPoint]
    foreign: tuple[tuple[str, str], ...]
    """Circuits that do not join an endpoint to an aggregator; never touched."""
    taken_points: frozenset[AttachPoint]
    """Aggregator ports whose fiber a foreign circuit holds."""
    taken_endpoints: frozenset[str]
    """Endpoints whose fiber a foreign circuit holds."""


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
        self._endpoints = {e.name: e.fiber for e in site.endpoints}
        self._aggregators = {a.name: a.fibers for a in site.aggregators}
        self._points: dict[tuple[str, str], list[AttachPoint]] = {}
        for aggregator in site.aggregators:
            for port, fiber in sorted(aggregator.fibers.items()):
                point = AttachPoint(aggregator.name, port)
                self._points.setdefault((aggregator.name, fiber.device), []).append(point)

    def link(self, endpoint: str, point: AttachPoint) -> Link | None:
        """Return the circuit that puts ``endpoint`` on ``point``.

        None when the endpoint is hard-wired, or the site no longer has the endpoint or the port.
        """
        fiber = self._endpoints.get(endpoint)
        far = self._aggregators.get(point.aggregator, {}).get(point.port)
        if fiber is None or far is None or far.device != fiber.device:
            return None
        return Link(fiber.device, fiber.port, far.port, endpoint, point.aggregator, point.port)

    def first_free(self, endpoint: str, target: str, taken: set[AttachPoint]) -> Link:
        """Return the circuit to the lowest free port of ``target``. RewiringError: none is free."""
        if target not in self._aggregators:
            raise RewiringError(f"the site has no aggregator {target}", target)
        switch = self._endpoints[endpoint].device
        for point in self._points.get((target, switch), []):
            if point not in taken and (found := self.link(endpoint, point)) is not None:
                return found
        raise RewiringError(f"{target} has no free port on {switch} for {endpoint}", target)


def recognise(site: CabledSite, switch: str, circuits: Iterable[tuple[str, str]]) -> Recognised:
    """Interpret the ``circuits`` (duplex, either orientation) of one optical switch."""
    endpoints = {e.fiber.port: e.name for e in site.endpoints if e.fiber.device == switch}
    points = {
        far.port: AttachPoint(aggregator.name, port)
        for aggregator in site.aggregators
        for port, far in aggregator.fibers.items()
        if far.device == switch
    }
    attachments: dict[str, AttachPoint] = {}
    foreign: list[tuple[str, str]] = []
    for a, b in circuits:
        if a in endpoints and b in points:
            attachments[endpoints[a]] = points[b]
        elif b in endpoints and a in points:
            attachments[endpoints[b]] = points[a]
        else:
            foreign.append((a, b))
    held = {port for pair in foreign for port in pair}
    return Recognised(
        attachments,
        tuple(foreign),
        taken_points=frozenset(points[port] for port in held & points.keys()),
        taken_endpoints=frozenset(endpoints[port] for port in held & endpoints.keys()),
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
            old = cabling.link(endpoint, at)
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
        if at is not None and cabling.link(endpoint, at) is None:
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
    before: Mapping[str, AttachPoint | None],
    after: Mapping[str, AttachPoint | None],
) -> tuple[SwitchChange, ...]:
    """Return the circuits that lead from ``before`` to ``after``, which name the same endpoints.

    Endpoints and ports that the site no longer has are left out: an old log may name them.
    """
    cabling = Cabling(site)
    sides: list[dict[str, list[Link]]] = []
    for points in (before, after):
        links: dict[str, list[Link]] = {}
        for endpoint, at in points.items():
            if at is None or before.get(endpoint) == after.get(endpoint):
                continue
            found = cabling.link(endpoint, at)
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
