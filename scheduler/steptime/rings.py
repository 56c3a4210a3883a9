"""Computes max-min fair rates of rings that share links.

A ring is one max-min entity: it has one rate everywhere, and loads a link once for each of its
edges that crosses it in that direction. ``sum_j load[j, l] * rate[j] <= capacity[l]``.
One ring only uses an access link, so access links cap its rate at 1.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from scheduler.steptime.routes import Routes

_NOTHING = 1e-9
"""Loads that are less than this have been removed, up to rounding."""
Link = Any
"""Anything hashable: an aggregator, or a directed pair of them."""
Loads = Mapping[Link, float]


def links_of(
    order: Sequence[str], homes: Mapping[str, str | None], routes: Routes
) -> dict[Link, float] | None:
    """Return how often a ring in this rank order crosses each directed pair of aggregators.

    None for a ring that cannot be: a member is dark, or no way leads to the next one's aggregator.
    """
    places = [homes.get(name) for name in order]
    edges = zip(places, (*places[1:], *places[:1]), strict=True)
    loads: dict[Link, float] = {}
    for (here, there), times in Counter(edges).items():
        if here is None or there is None:
            return None
        if here == there:
            continue
        shares = routes.shares(here, there)
        if shares is None:
            return None
        for link, share in shares.items():
            loads[link] = loads.get(link, 0.0) + times * share
    return loads


def max_min(
    rings: Mapping[Hashable, Loads], capacity: Mapping[Link, float], cap: float = 1.0
) -> dict[Hashable, float]:
    """Return every ring's max-min fair rate, at most ``cap``.

    Water-filling with a heap of links by the level at which they fill up. The level of a link
    only rises when other rings stop growing, so it is updated only when the link is next.
    """
    weight: dict[Link, float] = {}
    users: dict[Link, list[Hashable]] = {}
    for ring, loads in rings.items():
        for link, load in loads.items():
            weight[link] = weight.get(link, 0.0) + load
            users.setdefault(link, []).append(ring)
    left = {link: capacity[link] for link in weight}
    rates: dict[Hashable, float] = {}
    # The position breaks ties: links need not be comparable.
    heap = [(left[link] / weight[link], at, link) for at, link in enumerate(weight)]
    heapq.heapify(heap)
    while heap:
        level, at, link = heapq.heappop(heap)
        if level >= cap:
            break
        if weight[link] < _NOTHING:
            continue
        now = left[link] / weight[link]
        if now > level * (1 + 1e-12):
            heapq.heappush(heap, (now, at, link))
            continue
        for ring in users[link]:
            if ring in rates:
                continue
            rates[ring] = level
            for other, load in rings[ring].items():
                weight[other] -= load
                left[other] -= load * level
    return {ring: rates.get(ring, cap) for ring in rings}


class RingRates:
    """Incremental fair rates: a change updates only rings that share links with it."""

    def __init__(self, capacity: Mapping[Link, float], cap: float = 1.0) -> None:
        self._capacity = capacity
        self._cap = cap
        self._loads: dict[Hashable, Loads] = {}
        self._users: dict[Link, dict[Hashable, None]] = {}
        self.rates: dict[Hashable, float] = {}
        """The current rate of every ring."""

    def change(self, changes: Mapping[Hashable, Loads | None]) -> dict[Hashable, float]:
        """Add, move (loads) or remove (None) rings; return the rates that changed."""
        links: dict[Link, None] = {}
        before: dict[Hashable, float | None] = {}
        for ring, loads in changes.items():
            before[ring] = self.rates.get(ring)
            links.update(dict.fromkeys(self._drop(ring)))
            if loads is not None:
                self._loads[ring] = loads
                links.update(dict.fromkeys(loads))
                for link in loads:
                    self._users.setdefault(link, {})[ring] = None
        touched = self._reach(links, (r for r, loads in changes.items() if loads is not None))
        solved = max_min({ring: self._loads[ring] for ring in touched}, self._capacity, self._cap)
        changed = {
            ring: rate
            for ring, rate in solved.items()
            if before.get(ring, self.rates.get(ring)) != rate
        }
        self.rates.update(changed)
        for ring in solved:
            self.rates.setdefault(ring, solved[ring])
        return changed

    def _drop(self, ring: Hashable) -> Iterable[Link]:
        loads = self._loads.pop(ring, None)
        self.rates.pop(ring, None)
        for link in loads or ():
            del self._users[link][ring]
        return loads or ()

    def _reach(self, links: Mapping[Link, None], rings: Iterable[Hashable]) -> dict[Hashable, None]:
        """Return all rings that are connected to these links through shared links."""
        found: dict[Hashable, None] = dict.fromkeys(rings)
        seen, todo = set(links), list(links)
        while todo:
            for ring in self._users.get(todo.pop(), ()):
                found[ring] = None
                for link in self._loads[ring]:
                    if link not in seen:
                        seen.add(link)
                        todo.append(link)
        return found
