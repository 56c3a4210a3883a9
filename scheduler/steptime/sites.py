"""Computes the rates of the rings of a site's jobs, relative to an access link."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from scheduler.steptime.rings import Link, Loads, links_of, max_min
from scheduler.steptime.routes import Routes


@dataclass(slots=True, frozen=True)
class SharedLinks:
    """The links between aggregators, which rings share; rates per direction in bit/s."""

    access_bps: float
    inter_aggregator_bps: float
    """Rate of one link between two aggregators."""
    links: Mapping[frozenset[str], int]
    """Parallel links per pair of aggregators with a cable."""
    measured: Mapping[frozenset[str], float] = field(default_factory=dict)
    """Measured rate of one link of a pair of aggregators, relative to an access link; it replaces
    the site's figure."""
    routes: Routes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "routes", Routes(self.links))

    def rates(
        self, rings: Mapping[str, Sequence[str]], homes: Mapping[str, str | None]
    ) -> dict[str, float]:
        """Return every ring's max-min fair rate, except for rings that cannot be.

        ``rings`` gives each job's endpoints in rank order; all rings send all the time.
        """
        loads: Mapping[Hashable, Loads] = self.loads(rings, homes)
        rates = max_min(loads, self.capacities(loads.values()))
        return {str(name): rate for name, rate in rates.items()}

    def loads(
        self, rings: Mapping[str, Sequence[str]], homes: Mapping[str, str | None]
    ) -> dict[Hashable, Loads]:
        """Return how often each ring crosses which links, except for rings that cannot be."""
        found = {name: links_of(ring, homes, self.routes) for name, ring in rings.items()}
        return {name: loads for name, loads in found.items() if loads is not None}

    def capacities(self, rings: Iterable[Loads]) -> dict[Link, float]:
        """Return the rates of the links that rings load, relative to an access link."""
        return {link: self._capacity(link) for loads in rings for link in loads}

    def _capacity(self, link: Link) -> float:
        pair = frozenset(link)
        one = self.measured.get(pair, self.inter_aggregator_bps / self.access_bps)
        return self.links[pair] * one
