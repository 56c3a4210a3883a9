"""Where endpoints are attached, and which endpoints and ports may be used. Part of the state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from controller.devices.aggregators import AttachPoint
from controller.schema.fabric import EndpointState
from controller.state.kinds.kind import Records
from controller.state.records import QUARANTINE
from controller.transaction.circuits import fixed_attachments, homes
from sitefile import CabledSite


@dataclass(slots=True, frozen=True)
class Standing:
    """What an endpoint is, as a fact with a name, and why in words; nothing reads the words."""

    state: EndpointState
    reason: str = ""


IDLE = Standing("idle")


class Light:
    """The intended places of the endpoints, and all reasons not to use one."""

    def __init__(self, site: CabledSite) -> None:
        self._site = site
        self._names = frozenset(cable.name for cable in site.endpoints)
        self.attachments: dict[str, AttachPoint] = fixed_attachments(site)
        """Where every lit endpoint is attached."""
        self.held: dict[str, AttachPoint | None] = {}
        """Endpoints whose traffic the aggregators drop, and where probes may reach them."""
        self.quarantine = Records(QUARANTINE)
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
        detached: Iterable[str],
    ) -> None:
        """Take over what is stored, as far as the site file still has the endpoint and the port."""
        cabled = self.attachments  # hard-wired endpoints, from the site file
        taken = frozenset(cabled.values())
        self.attachments = cabled | {
            e: at
            for e, at in attachments.items()
            if e in self._names and e not in cabled and at not in taken and self.has_port(at)
        }
        self.detached = set(detached) & self._names

    def relocate(self, places: Mapping[str, AttachPoint | None]) -> bool:
        """Record where endpoints are, None for dark; return whether anything changed.

        A port holds one fiber: any other endpoint recorded there is removed. A foreign change may
        have taken the port of an endpoint that a transaction is moving away.
        """
        news = {e: at for e, at in places.items() if self.attachments.get(e) != at}
        taken = {at for at in news.values() if at is not None}
        gone = [e for e, at in self.attachments.items() if at in taken and e not in places]
        for endpoint in gone:
            del self.attachments[endpoint]
        for endpoint, at in news.items():
            if at is None:
                del self.attachments[endpoint]
            else:
                self.attachments[endpoint] = at
        return bool(news)

    def has_port(self, at: AttachPoint) -> bool:
        """Whether the site has this aggregator port for endpoints."""
        for cable in self._site.aggregators:
            if cable.name == at.aggregator:
                return at.port in cable.fibers or at.port in cable.fixed
        return False

    def homes(self) -> dict[str, str | None]:
        """Return each endpoint's home, None for a dark one."""
        return homes(self._site, self.attachments)

    def aggregators_of(self, endpoints: Iterable[str]) -> frozenset[str]:
        """Return the aggregators these endpoints are under."""
        return frozenset(self.attachments[e].aggregator for e in endpoints if e in self.attachments)


def spread(endpoints: Sequence[str], homes: Mapping[str, str | None]) -> dict[str, int]:
    """Count endpoints per home, sorted by name; dark ones count under ``dark``."""
    counts: dict[str, int] = {}
    for name in endpoints:
        home = homes.get(name) or "dark"
        counts[home] = counts.get(home, 0) + 1
    return dict(sorted(counts.items()))
