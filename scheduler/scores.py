"""Scores placements: their span, the span a regroup could reach, and the remaining capacity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduler.metrics import SpanBound, external_fragmentation, free_by_aggregator, span, stranded
from scheduler.model import Fabric
from scheduler.occupancy import all_homes

SIZES = (2, 4, 8)
"""Job sizes for which stranded endpoints are counted."""


@dataclass(slots=True, frozen=True)
class RemainingCapacity:
    """What jobs the idle endpoints can still serve with the present homes."""

    idle: int
    """Idle endpoints that are lit and available."""
    largest: int
    """Size of the largest job that fits under one aggregator without a move."""
    stranded: Mapping[int, float]
    """Per job size, the share of idle endpoints that no such job can use under one aggregator."""
    external: float
    """1 - largest / idle; 0 when nothing is idle."""


@dataclass(slots=True, frozen=True)
class Scores:
    """The scores of one placement."""

    span: int
    span_reachable: int
    """Lower bound on the span after any regroup."""


class Scorer:
    """Scores placements on one fabric."""

    def __init__(self, fabric: Fabric) -> None:
        self._endpoints = {e.name: e for e in fabric.site.endpoints}
        self._homes = all_homes(fabric)
        self._bound = SpanBound(fabric)
        free = free_by_aggregator(fabric)
        self.left = RemainingCapacity(
            idle=sum(free.values()),
            largest=max(free.values(), default=0),
            stranded={size: stranded(free, size) for size in SIZES},
            external=external_fragmentation(free),
        )

    def of(self, endpoints: Sequence[str]) -> Scores:
        """Return the scores of a job's endpoints. Raises KeyError for an unknown endpoint."""
        members = [self._endpoints[name] for name in endpoints]
        return Scores(span(endpoints, self._homes), self._bound.least(members))

    def excess(self, endpoints: Sequence[str], homes: Mapping[str, str | None]) -> int:
        """Return the excess span of the endpoints with these homes; 0 without endpoints."""
        if not endpoints:
            return 0
        return span(endpoints, homes) - self._bound.least([self._endpoints[n] for n in endpoints])
