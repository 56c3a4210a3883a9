"""Computes the rates of the rings of a site's jobs, relative to an access link."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from scheduler.steptime.rings import Link, Loads, links_of, max_min


@dataclass(slots=True, frozen=True)
class SharedLinks:
    """The links between aggregators, which rings share; rates per direction in bit/s."""

    access_bps: float
    inter_aggregator_bps: float
    """Rate of one link between two aggregators."""
    links: Mapping[frozenset[str], int] = field(default_factory=dict)
    """Parallel links per pair of aggregators; 1 for a pair without an entry."""
    measured: Mapping[frozenset[str], float] = field(default_factory=dict)
    """Measured rate of one link of a pair of aggregators, relative to an access link; it replaces
    the site's figure."""

    def rates(
        self, rings: Mapping[str, Sequence[str]], homes: Mapping[str, str | None]
    ) -> dict[str, float]:
        """Return every ring's max-min fair rate, except for rings with a dark member.

        ``rings`` gives each job's endpoints in rank order; all rings send all the time.
        """
        lit: dict[Hashable, Loads] = {
            name: links_of(ring, homes)
            for name, ring in rings.items()
            if all(homes.get(e) is not None for e in ring)
        }
        capacity = self.capacities(lit.values())
        return {str(name): rate for name, rate in max_min(lit, capacity).items()}

    def capacities(self, rings: Iterable[Loads]) -> dict[Link, float]:
        """Return the rates of the links that rings load, relative to an access link."""
        return {link: self._capacity(link) for loads in rings for link in loads}

    def _capacity(self, link: Link) -> float:
        pair = frozenset(link)
        one = self.measured.get(pair, self.inter_aggregator_bps / self.access_bps)
        return self.links.get(pair, 1) * one
