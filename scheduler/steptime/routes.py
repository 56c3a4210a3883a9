"""Shortest paths between aggregators, as the flow compiler routes over the uplinks of a site."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

Share = Mapping[tuple[str, str], float]


class Routes:
    """How traffic from one aggregator to another divides over the links between them.

    Every aggregator divides it evenly over its uplinks that lead one hop nearer.
    """

    def __init__(self, links: Mapping[frozenset[str], int]) -> None:
        """``links`` are the parallel links of each pair of aggregators with a cable."""
        self._peers: dict[str, dict[str, int]] = {}
        for pair, count in links.items():
            if len(pair) == 2 and count > 0:
                a, b = sorted(pair)
                self._peers.setdefault(a, {})[b] = count
                self._peers.setdefault(b, {})[a] = count
        self._hops: dict[str, dict[str, int]] = {}
        self._shares: dict[tuple[str, str], Share | None] = {}

    def shares(self, here: str, there: str) -> Share | None:
        """Return the share of the traffic on each directed pair of aggregators on its way.

        None where no way leads there.
        """
        if (here, there) not in self._shares:
            self._shares[here, there] = self._spread(here, there)
        return self._shares[here, there]

    def _spread(self, here: str, there: str) -> Share | None:
        if there in self._peers.get(here, ()):  # nothing is nearer than a cable of their own
            return {(here, there): 1.0}
        hops = self._hops_to(there)
        if here not in hops:
            return None
        found: dict[tuple[str, str], float] = {}
        flow = {here: 1.0}
        for _ in range(hops[here]):  # all of it is equally far
            after: dict[str, float] = {}
            for at, share in flow.items():
                nearer = dict(self._nearer(at, hops))
                ports = sum(nearer.values())
                for peer, count in nearer.items():
                    found[at, peer] = share * count / ports
                    after[peer] = after.get(peer, 0.0) + found[at, peer]
            flow = after
        return found

    def _nearer(self, at: str, hops: Mapping[str, int]) -> Iterator[tuple[str, int]]:
        for peer, count in self._peers[at].items():
            if hops[peer] < hops[at]:
                yield peer, count

    def _hops_to(self, there: str) -> Mapping[str, int]:
        hops = self._hops.get(there)
        if hops is None:
            hops = self._hops[there] = {there: 0}
            edge = [there]
            while edge:
                farther = {p for at in edge for p in self._peers.get(at, ()) if p not in hops}
                hops |= dict.fromkeys(farther, hops[edge[0]] + 1)
                edge = sorted(farther)
        return hops
