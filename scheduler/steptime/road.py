"""What a job's ring finds at a placement: a range of rates, and the latency of a hop.

Other jobs' rings load the links only while they communicate. Steady fair shares assume that
they always do, hence are the least rate; the rate of a ring that is alone is the highest. Where
the steps of all jobs that share links are known, their phases are simulated
(``scheduler.steptime.fluid``), and the rate is the mean over the time in which the ring sends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduler.steptime.fluid import Trainer, mean_rates
from scheduler.steptime.profile import StepProfile
from scheduler.steptime.rings import Link
from scheduler.steptime.sites import SharedLinks

SAME_AGGREGATOR = "same aggregator"
"""The class of a hop that leaves its server and not its aggregator."""
SAME_SERVER = "same server"
_GATED = 0.9
"""A path between aggregators slower than this share of an access link is gated by their link."""


@dataclass(slots=True, frozen=True)
class Road:
    """A ring's rate, relative to an access link, and the latency of its slowest hop."""

    low: float
    """With all other rings sending all the time."""
    high: float
    """As far as other rings are known to pause."""
    hop_s: float = 0.0
    bounds: tuple[float, float] | None = None
    """For a rate of simulated phases: the rates with all others sending, and alone."""

    @property
    def steady(self) -> bool:
        """True if other jobs leave no doubt about the rate."""
        return self.high - self.low <= 1e-9 * self.high


@dataclass(slots=True, frozen=True)
class LinkModel:
    """Measured links by class: latency in s, and goodput of one flow in bytes/s.

    Classes are ``same server``, ``same aggregator`` and ``A-B`` for each pair of aggregators, in
    the order of their names (``measure links``).
    """

    fits: Mapping[str, tuple[float, float]]
    source: str = ""
    """The measurement that they come from."""
    ring_share: float = 1.0
    """Share of a link's goodput that a ring of many ranks was measured to get: its copies and its
    waits take the rest, at every rate."""

    def hop_s(self, ring: Sequence[str], homes: Mapping[str, str | None]) -> float:
        """Return the latency of the ring's slowest hop; 0 for classes that were not measured."""
        found = (self.fits.get(name) for name in _classes(ring, homes))
        return max((fit[0] for fit in found if fit is not None), default=0.0)

    @property
    def access_bps(self) -> float | None:
        """Goodput of an access link in bit/s; None where it was not measured."""
        fit = self.fits.get(SAME_AGGREGATOR)
        return None if fit is None else 8.0 * fit[1]

    @property
    def ring_bps(self) -> float | None:
        """Payload that a ring gets of an access link, in bit/s; None where it was not measured."""
        access = self.access_bps
        return None if access is None else self.ring_share * access

    def adjusted(self, roads: SharedLinks) -> SharedLinks:
        """Return the links with measured rates for those that a single flow fills.

        A pair of aggregators that was not measured keeps the site file's rate, in proportion to an
        access link.
        """
        access = self.access_bps
        if access is None:
            return roads
        found = {}
        for pair in roads.links:
            fit = self.fits.get(class_of(*pair)) if len(pair) == 2 else None
            if fit is not None and 8.0 * fit[1] < _GATED * access:
                found[pair] = 8.0 * fit[1] / access
        return SharedLinks(
            roads.access_bps, roads.inter_aggregator_bps, roads.links, {**roads.measured, **found}
        )


def class_of(here: str, there: str) -> str:
    """Return the class of a hop between two aggregators."""
    return SAME_AGGREGATOR if here == there else "-".join(sorted((here, there)))


def _classes(ring: Sequence[str], homes: Mapping[str, str | None]) -> set[str]:
    places = [homes.get(name) for name in ring]
    pairs = zip(places, (*places[1:], *places[:1]), strict=True)
    return {class_of(a, b) for a, b in pairs if a is not None and b is not None}


_TOGETHER = 8
"""Up to so many rings that share links are simulated."""
_MOST = 4_000
"""Cost of one simulation, in phases times jobs: 10 ms."""
_MOST_ALL = 8_000
"""Cost of all simulations of one moment."""


class Roads:
    """The roads of all rings of a site at one moment."""

    def __init__(
        self,
        rings: Mapping[str, Sequence[str]],
        homes: Mapping[str, str | None],
        links: SharedLinks,
        *,
        profiles: Mapping[str, StepProfile] | None = None,
        model: LinkModel | None = None,
    ) -> None:
        """``profiles`` are the jobs' steps, as far as known.

        A job that is not among them may communicate always or never, and so may the neighbours of
        a ring that has more than seven: they are too many to simulate. ``links`` are the site's;
        ``model`` replaces those that were measured. A ring with a dark member has no road, nor has
        one whose aggregators no way connects.
        """
        self._homes = homes
        self._model = model
        self._profiles = profiles or {}
        self._links = model.adjusted(links) if model else links
        self._loads = {str(n): loads for n, loads in self._links.loads(rings, homes).items()}
        self._rings = {n: rings[n] for n in self._loads}
        self.steady: Mapping[str, float] = self._links.rates(self._rings, homes)
        """Every ring's rate while all send."""
        self._simulated: dict[frozenset[str], Mapping[str, float]] = {}
        self._left = _MOST_ALL
        self._users: dict[Link, list[str]] = {}
        for name, loads in self._loads.items():
            for link in loads:
                self._users.setdefault(link, []).append(name)

    @property
    def measured(self) -> bool:
        """Whether measured links replace the site's figures."""
        return self._model is not None

    @property
    def source(self) -> str:
        """The measurement of the links; empty without one."""
        return self._model.source if self._model else ""

    @property
    def access_bps(self) -> float | None:
        """Measured goodput of an access link in bit/s."""
        return self._model.access_bps if self._model else None

    @property
    def ring_bps(self) -> float | None:
        """Payload that a ring was measured to get of an access link, in bit/s."""
        return self._model.ring_bps if self._model else None

    def to(self, focus: str) -> Road | None:
        """Return the road of one ring; None for one that cannot be.

        Only rings that share a link with it, also through others, matter.
        """
        ring = self._rings.get(focus)
        if ring is None:
            return None
        hop_s = self._model.hop_s(ring, self._homes) if self._model else 0.0
        steady = self.steady[focus]
        others = sorted(self._near(focus) - {focus})
        if not others:
            return Road(steady, steady, hop_s)
        alone = self._links.rates({focus: ring}, self._homes)[focus]
        mean = self._mean_rates((focus, *others)).get(focus)
        if mean is None:
            return Road(steady, alone, hop_s)
        mean = min(max(mean, steady), alone)
        return Road(mean, mean, hop_s, (steady, alone))

    def _mean_rates(self, names: Sequence[str]) -> Mapping[str, float]:
        """Return the mean rates of rings that share links; none where they are not known."""
        key = frozenset(names)
        if key not in self._simulated:
            self._simulated[key] = self._simulate(sorted(key))
        return self._simulated[key]

    def _simulate(self, names: Sequence[str]) -> Mapping[str, float]:
        if len(names) > _TOGETHER or any(name not in self._profiles for name in names):
            return {}
        if self._left <= 0:
            return {}
        self._left -= _MOST
        trainers = [
            Trainer(name, self._profiles[name], len(self._rings[name]), self._loads[name])
            for name in names
        ]
        capacity = self._links.capacities(self._loads[name] for name in names)
        return mean_rates(trainers, capacity, _MOST) or {}

    def _near(self, focus: str) -> set[str]:
        """Return the rings connected to the focus through shared links, the focus included."""
        found, todo, seen = {focus}, list(self._loads[focus]), set(self._loads[focus])
        while todo:
            for name in self._users[todo.pop()]:
                if name not in found:
                    found.add(name)
                    more = self._loads[name].keys() - seen
                    seen |= more
                    todo += more
        return found
