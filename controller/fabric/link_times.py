"""How long links need from light to carrier: the site file's figures, and what was measured."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from controller.devices.aggregators import AttachPoint
from controller.transaction.circuits import End, EndpointEnd, Link, Rewiring
from sitefile import CabledSite

MEASURED = 200
"""Re-lights kept for each pair of optics."""
MARGIN = 1.5
NOTICED_S = 0.5
"""A carrier that comes sooner needs no allowance: the time-out of the probe covers it."""


@dataclass(slots=True, frozen=True)
class LinkUp:
    """How long links need from light to carrier, and how that is known."""

    up_s: float = 0.0
    source: str = ""
    """Empty when no link is lit."""


class LinkTimes:
    """The link-up times of a site. Learns from every carrier that was seen to come."""

    def __init__(self, site: CabledSite) -> None:
        self._endpoints = {e.name: e.optic for e in site.endpoints}
        self._aggregators = {a.name: a.optic for a in site.aggregators}
        self._configured = site.links.up_s
        self._measured: dict[tuple[str, ...], deque[float]] = {}
        self._learnt: dict[tuple[str, ...], float] = {}
        """What follows from them: plans ask for each of their links."""

    def of(self, end: End, point: AttachPoint) -> LinkUp:
        """Return the allowance of a link: the longer of the site file's and the learnt one."""
        optics = self._optics(end, point)
        configured = max(self._configured[optic] for optic in optics)
        learnt = self._learnt.get(optics, 0.0)
        if learnt > max(configured, NOTICED_S):
            count = len(self._measured[optics])
            return LinkUp(round(learnt, 3), f"learnt from {count} re-lights")
        return LinkUp(configured, "configured")

    def up_s(self, link: Link) -> float:
        """Return how long a link may need from light to carrier, in seconds."""
        return self.of(link.end, link.point).up_s

    def slowest(self, rewiring: Rewiring) -> LinkUp:
        """Return the slowest link that a rewiring lights."""
        found = (self.of(k.end, k.point) for change in rewiring.changes for k in change.make)
        return max(found, key=lambda known: known.up_s, default=LinkUp())

    def add(self, end: End, point: AttachPoint, carrier_s: float) -> None:
        """Keep how long a carrier took to come, in seconds."""
        optics = self._optics(end, point)
        measured = self._measured.setdefault(optics, deque(maxlen=MEASURED))
        measured.append(carrier_s)
        self._learnt[optics] = MARGIN * _p99(measured)

    def _optics(self, end: End, point: AttachPoint) -> tuple[str, ...]:
        near = (
            self._endpoints[end.endpoint]
            if isinstance(end, EndpointEnd)
            else self._aggregators[end.aggregator]
        )
        return tuple(sorted((near, self._aggregators[point.aggregator])))


def _p99(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[math.ceil(0.99 * len(ordered)) - 1]
