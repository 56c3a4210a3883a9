"""How good a placement is: span now, span a regroup could reach, and what it leaves over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduler.metrics import SpanBound, external_fragmentation, free_by_aggregator, span, stranded
from scheduler.model import Fabric
from scheduler.occupancy import all_homes

SIZES = (2, 4, 8)
"""Job sizes for which stranded endpoints are counted."""


@dataclass(slots=True, frozen=True)
class Left:
    """What the idle endpoints are still good for with the present homes."""

    idle: int
    """Lit ones that are available."""
    largest: int
    """The largest job that fits under one aggregator without any move."""
    stranded: Mapping[int, float]
    """Per job size the share of idle endpoints that no such job can use compactly."""
    external: float
    """1 - largest / idle; 0 when nothing is idle."""


@dataclass(slots=True, frozen=True)
class Scores:
    """One placement."""

    span: int
    span_reachable: int
    """No regroup gets below it."""


class Scorer:
    """Scores of many placements on one fabric."""

    def __init__(self, fabric: Fabric) -> None:
        self._endpoints = {e.name: e for e in fabric.site.endpoints}
        self._homes = all_homes(fabric)
        self._bound = SpanBound(fabric.site)
        free = free_by_aggregator(fabric)
        self.left = Left(
            idle=sum(free.values()),
            largest=max(free.values(), default=0),
            stranded={size: stranded(free, size) for size in SIZES},
            external=external_fragmentation(free),
        )

    def of(self, endpoints: Sequence[str]) -> Scores:
        """Return the scores of a job's endpoints. KeyError for one the site does not have."""
        members = [self._endpoints[name] for name in endpoints]
        return Scores(span(endpoints, self._homes), self._bound.least(members))

    def excess(self, endpoints: Sequence[str], homes: Mapping[str, str | None]) -> int:
        """Return how many aggregators too many endpoints touch with these homes; 0 for none."""
        if not endpoints:
            return 0
        return span(endpoints, homes) - self._bound.least([self._endpoints[n] for n in endpoints])
