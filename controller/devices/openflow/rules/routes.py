"""Shortest paths between aggregators over uplinks. Pure.

Every answer is computed when it is first asked for and then kept, because a big site has millions
of pairs of aggregators and its jobs use few of them.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from itertools import combinations

from sitefile.model import Uplink

Ways = Mapping[str, Mapping[str, tuple[int, ...]]]
"""All that a job's rules depend on of the uplinks: per aggregator that carries the job, its ports
on shortest paths to each other aggregator with members."""


class Wiring:
    """Uplinks: which port leads to which aggregator, on shortest paths."""

    def __init__(self, uplinks: tuple[Uplink, ...] = ()) -> None:
        self.uplinks = uplinks
        self._peers: dict[str, dict[int, str]] = {}
        for uplink in uplinks:
            for near, far in ((uplink.a, uplink.b), (uplink.b, uplink.a)):
                self._peers.setdefault(near.device, {})[int(near.port)] = far.device
        self._counting = threading.Lock()
        """For a plan and an installation that ask at the same time, from two threads."""
        self._hops: dict[str, dict[str, int]] = {}
        """Per target: the distances computed so far."""
        self._edge: dict[str, list[str]] = {}
        """Per target: the farthest aggregators so far, where counting continues."""
        self._towards: dict[tuple[str, str], tuple[int, ...]] = {}
        self._on_the_way: dict[tuple[str, str], frozenset[str]] = {}

    def towards(self, here: str, there: str) -> tuple[int, ...]:
        """Return the uplink ports of ``here`` on shortest paths to ``there``, sorted."""
        found = self._towards.get((here, there))
        if found is None:
            found = tuple(sorted(port for port, _ in self._nearer(here, there)))
            self._towards[here, there] = found
        return found

    def ways(self, ends: Collection[str]) -> Ways:
        """Return the ways between ``ends``, of the aggregators on them as well."""
        involved = set(ends)
        for a, b in combinations(sorted(ends), 2):
            involved |= self._way(a, b)
        return {
            here: {there: ports for there in ends if (ports := self.towards(here, there))}
            for here in involved
        }

    def _way(self, a: str, b: str) -> frozenset[str]:
        way = self._on_the_way.get((a, b))
        if way is None:
            seen = {a} if a in self._hops_to(b, a) else set()
            todo = list(seen)
            while todo:
                for _, peer in self._nearer(todo.pop(), b):
                    if peer not in seen:
                        seen.add(peer)
                        todo.append(peer)
            way = frozenset(seen)
            self._on_the_way[a, b] = way
        return way

    def _nearer(self, here: str, there: str) -> Iterator[tuple[int, str]]:
        """Yield ports of ``here`` that lead one hop nearer, and the aggregators behind them."""
        hops = self._hops_to(there, here)
        if here in hops:
            for port, peer in self._peers.get(here, {}).items():
                if hops.get(peer) == hops[here] - 1:
                    yield port, peer

    def _hops_to(self, there: str, here: str) -> Mapping[str, int]:
        """Return the distances to ``there``, at least of ``here`` and of all that is nearer."""
        with self._counting:
            if there not in self._hops:
                self._hops[there], self._edge[there] = {there: 0}, [there]
            counted = self._hops[there]
            while here not in counted and (edge := self._edge[there]):
                self._edge[there] = farther = []
                for at in edge:
                    for peer in self._peers.get(at, {}).values():
                        if peer not in counted:
                            counted[peer] = counted[at] + 1
                            farther.append(peer)
            return counted
