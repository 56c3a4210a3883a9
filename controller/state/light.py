"""Which circuits are lit, and which endpoints and ports may be used. Part of the state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from controller.devices.aggregators import AttachPoint
from controller.schema.fabric import EndpointState
from controller.state.kept.profiles import PROFILES
from controller.state.kinds.kind import Records
from controller.state.records import QUARANTINE
from controller.transaction.circuits import End, EndpointEnd, fixed_attachments, homes
from scheduler.model import Slot
from sitefile import CabledSite

Near = TypeVar("Near")


@dataclass(slots=True, frozen=True)
class Standing:
    """What an endpoint is, as a fact with a name, and why in words; nothing reads the words."""

    state: EndpointState
    reason: str = ""


IDLE = Standing("idle")


class Light:
    """The intended circuits, and all reasons not to use an endpoint or a port."""

    def __init__(self, site: CabledSite) -> None:
        self._site = site
        self.ports: Mapping[AttachPoint, str] = {
            AttachPoint(aggregator.name, port): fiber.device
            for aggregator in site.aggregators
            for port, fiber in aggregator.fibers.items()
        }
        """Each aggregator port for circuits, and the optical switch that its fiber goes to."""
        self._names = frozenset(cable.name for cable in site.endpoints)
        self.attachments: dict[str, AttachPoint] = fixed_attachments(site)
        """Where every lit endpoint is attached."""
        self.uplinks: dict[AttachPoint, AttachPoint] = {}
        """The circuits between two aggregators, from the lesser port."""
        self.held: dict[str, AttachPoint | None] = {}
        """Endpoints whose traffic the aggregators drop, and where probes may reach them."""
        self.quarantine = Records(QUARANTINE)
        self.profiles = Records(PROFILES)
        """What was measured of aggregators."""
        self.detached: set[str] = set()
        """Endpoints that an operator darkened; they are not lit again automatically."""
        self.flapping: frozenset[str] = frozenset()
        """Objects (``endpoint/gpu2``, ``aggregator/as0``) that flap too often to be used."""
        self.foreign_points: dict[str, frozenset[AttachPoint]] = {}
        self.foreign_endpoints: dict[str, frozenset[str]] = {}
        """Per optical switch: what foreign circuits hold. A key means that it was read once."""
        self.squatted: frozenset[str] = frozenset()
        """Endpoints held by containers of unknown jobs."""
        self.strangers: Mapping[str, str] = {}
        """Those unknown jobs, by endpoint."""
        self.spared: frozenset[str] = frozenset()
        """Endpoints that such a container may hold, as far as observed since the start: their
        flows stay."""
        self.lost: frozenset[str] = frozenset()
        """Aggregators that count as lost: they forward nothing, and nothing waits for them."""
        self.lost_switches: frozenset[str] = frozenset()
        """Optical switches that counted as lost and whose session is not back: no job starts on
        their endpoints, whose light may be gone."""
        self.unfit: Mapping[str, str] = {}
        """Endpoints whose GPU or agent is unfit now, and why."""
        self.unready: Mapping[str, str] = {}
        """Endpoints that get no job for now though nothing is known against them, and why."""

    def restore(
        self,
        attachments: Mapping[str, AttachPoint],
        uplinks: Mapping[AttachPoint, AttachPoint],
        detached: Iterable[str],
    ) -> None:
        """Take over what is stored, as far as the site file still has both ends."""
        cabled = self.attachments  # hard-wired endpoints, from the site file
        taken = frozenset(cabled.values())
        self.attachments = cabled | {
            e: at
            for e, at in attachments.items()
            if e in self._names and e not in cabled and at not in taken and at in self.ports
        }
        taken = frozenset(self.attachments.values())
        self.uplinks = {
            near: far
            for near, far in uplinks.items()
            if self.ports.get(near, "") == self.ports.get(far) and taken.isdisjoint((near, far))
        }
        self.detached = set(detached) & self._names

    def relocate(self, places: Mapping[End, AttachPoint | None]) -> bool:
        """Record what ends lead to, None for dark; return whether anything changed.

        A port holds one fiber: any other circuit recorded there is removed. A foreign change may
        have taken the port of an endpoint that a transaction is moving away.
        """
        news = {end: at for end, at in places.items() if self.far(end) != at}
        taken = {point for end, at in news.items() if at is not None for point in (end, at)}
        stale: list[End] = [EndpointEnd(e) for e, at in self.attachments.items() if at in taken]
        stale += [a for a, b in self.uplinks.items() if not taken.isdisjoint((a, b))]
        for end, at in {**dict.fromkeys(stale), **places}.items():
            if isinstance(end, EndpointEnd):
                _put(self.attachments, end.endpoint, at)
            else:
                _put(self.uplinks, end, at)
        return bool(news)

    def far(self, end: End) -> AttachPoint | None:
        """Return the port that an end leads to; None for a dark one."""
        if isinstance(end, EndpointEnd):
            return self.attachments.get(end.endpoint)
        return self.uplinks.get(end)

    def end_at(self, point: AttachPoint) -> End | None:
        """Return what leads to a port, an endpoint or another port; None for a dark one."""
        for near, far in self.uplinks.items():
            if point in (near, far):
                return far if point == near else near
        found = (EndpointEnd(e) for e, at in self.attachments.items() if at == point)
        return next(found, None)

    def uplink_points(self) -> frozenset[AttachPoint]:
        """Return the ports that carry uplinks."""
        return frozenset(point for pair in self.uplinks.items() for point in pair)

    def slots(self, points: Iterable[AttachPoint]) -> dict[Slot, int]:
        """Count ports for circuits by what makes them interchangeable.

        A dict, because the planner's process takes nothing but plain values.
        """
        return dict(Counter((p.aggregator, self.ports[p]) for p in points if p in self.ports))

    def homes(self) -> dict[str, str | None]:
        """Return each endpoint's home, None for a dark one."""
        return homes(self._site, self.attachments)

    def aggregators_of(self, endpoints: Iterable[str]) -> frozenset[str]:
        """Return the aggregators these endpoints are under."""
        return frozenset(self.attachments[e].aggregator for e in endpoints if e in self.attachments)


def _put(lit: dict[Near, AttachPoint], near: Near, at: AttachPoint | None) -> None:
    if at is None:
        lit.pop(near, None)
    else:
        lit[near] = at


def spread(endpoints: Sequence[str], homes: Mapping[str, str | None]) -> dict[str, int]:
    """Count endpoints per home, sorted by name; dark ones count under ``dark``."""
    counts: dict[str, int] = {}
    for name in endpoints:
        home = homes.get(name) or "dark"
        counts[home] = counts.get(home, 0) + 1
    return dict(sorted(counts.items()))
