"""Finds for every aggregator the load that is worth most at given prices: a knapsack each.

``worth[size]`` is the most that a load of at most this size is worth; the units are offered one
after the other. What may arrive is worth the same everywhere, so one array begins all knapsacks.
Each goes on with the units that have members at its aggregator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from scheduler.program import Floats
from scheduler.regroup.counts import Ints
from scheduler.regroup.loads.facts import Facts, Load, Part, Sizes, Vector

_TINY = 1e-7
_Number = TypeVar("_Number", float, Floats)


@dataclass(slots=True)
class Prices:
    """What is worth how much, and what it costs."""

    unit: Floats
    """unit[unit]: worth of a unit of one part that keeps members, before its cost."""
    arriving: Floats
    """arriving[kind]: worth of room for a unit of one part that arrives."""
    member: Floats
    """member[unit, switch]: worth of a member of a unit of several parts."""
    part: Floats
    """part[unit]: worth of one of its parts besides: negative, as it may have few."""
    stay: dict[tuple[int, int], float]
    """(unit, aggregator): worth of its part that stays as it is, besides."""
    moves: float
    """Cost of a member that moves."""
    paused: float
    """Cost of a member of a unit that moves."""

    def towards(self, other: Prices, share: float) -> Prices:
        """Return prices between these and others: ``share`` of the others."""

        def between(here: _Number, there: _Number) -> _Number:
            return here + share * (there - here)

        keys = self.stay.keys() | other.stay.keys()
        return Prices(
            unit=between(self.unit, other.unit),
            arriving=between(self.arriving, other.arriving),
            member=between(self.member, other.member),
            part=between(self.part, other.part),
            stay={k: between(self.stay.get(k, 0.0), other.stay.get(k, 0.0)) for k in keys},
            moves=between(self.moves, other.moves),
            paused=between(self.paused, other.paused),
        )


@dataclass(slots=True, frozen=True)
class Priced:
    """A load, and what it is worth beyond its cost."""

    worth: float
    load: Load


_Layer = tuple[int, Floats]
"""What was offered, and the worth without it and what came later."""


def price(facts: Facts, prices: Prices, most: int = 1) -> list[list[Priced]]:
    """Return the best loads of each aggregator: of ``most`` sizes, the best one first."""
    kinds, worth = _arriving(facts, prices)
    parts, worth = _foreign(facts, prices, worth)
    taken = [
        (a, found)
        for a in range(facts.problem.aggregators)
        for found in _Own(facts, prices, a, worth).best(most)
    ]
    at = np.array([found.at for _, found in taken], np.int64)
    for layer in reversed(parts):
        for i, vector in _chosen(facts, prices, layer, worth, at):
            taken[i][1].parts.append((layer[0], vector))
            at[i] -= facts.sizes.number(vector)
        worth = layer[1]
    counts: list[Counter[int]] = [Counter() for _ in taken]
    for v, before in reversed(kinds):
        more = np.flatnonzero(worth[at] > before[at] + _TINY)
        at[more] -= facts.sizes.number(facts.kinds[v])
        for i in more.tolist():
            counts[i][v] += 1
        worth = before
    loads: list[list[Priced]] = [[] for _ in range(facts.problem.aggregators)]
    for (a, found), count in zip(taken, counts, strict=True):
        kept, arriving = tuple(sorted(found.kept)), tuple(sorted(count.items()))
        loads[a].append(Priced(found.worth, Load(kept, arriving, _merged(facts, found.parts))))
    return loads


def _arriving(facts: Facts, prices: Prices) -> tuple[list[_Layer], Floats]:
    """Offer the units that may arrive."""
    layers: list[_Layer] = []
    worth = np.zeros(facts.sizes.count)
    counts = Counter(facts.kind)
    for v, gain in enumerate(prices.arriving.tolist()):
        if gain <= _TINY:
            continue
        for _ in range(counts[v]):
            first, offered = facts.sizes.grown(worth, facts.kinds[v], gain)
            if not (offered > worth[first:] + _TINY).any():
                break
            layers.append((v, worth))
            worth = worth.copy()
            np.maximum(worth[first:], offered, out=worth[first:])
    return layers, worth


def _foreign(facts: Facts, prices: Prices, worth: Floats) -> tuple[list[_Layer], Floats]:
    """Offer parts that arrive."""
    layers: list[_Layer] = []
    for j in np.flatnonzero(facts.least > 1).tolist():
        gains = [
            [(vector, n * (worth_k - prices.moves)) for n, vector in along]
            for worth_k, along in zip(prices.member[j].tolist(), facts.parts[j].along, strict=True)
        ]
        after = _with_part(facts.sizes, worth, float(prices.part[j]), gains)
        if after is not None:
            layers.append((j, worth))
            worth = after
    return layers, worth


def _with_part(
    sizes: Sizes, worth: Floats, fixed: float, gains: Sequence[Sequence[tuple[Vector, float]]]
) -> Floats | None:
    """Offer a part of any size: its worth is a sum over switches; None if it is worth nothing."""
    if fixed + sum(max(gain for _, gain in one) for one in gains) <= _TINY:
        return None
    offered = worth + fixed
    for one in gains:
        best: Floats | None = None
        for vector, gain in one:
            first, found = sizes.grown(offered, vector, gain)
            if best is None:
                best = found if not first else np.concatenate([np.full(first, -np.inf), found])
            else:
                np.maximum(best[first:], found, out=best[first:])
        offered = offered if best is None else best
    return np.maximum(worth, offered)


def _chosen(
    facts: Facts, prices: Prices, layer: _Layer, worth: Floats, at: Ints
) -> list[tuple[int, Vector]]:
    """Return the parts of a unit that arrive, by place in ``at``."""
    j, before = layer
    vectors = facts.parts[j].vectors
    gains = vectors @ (prices.member[j] - prices.moves)
    return [
        (i, _best(facts.sizes, vectors, gains, before, int(at[i]))[0])
        for i in np.flatnonzero(worth[at] > before[at] + _TINY).tolist()
    ]


def _best(
    sizes: Sizes, vectors: Ints, gains: Floats, before: Floats, number: int
) -> tuple[Vector, float]:
    """Return the vector that is worth most in a load of this size, and its worth."""
    fits = np.flatnonzero((vectors <= sizes.size(number)).all(axis=1))
    rest = number - vectors[fits] @ sizes.steps
    worths = before[rest] + gains[fits]
    best = int(worths.argmax())
    return tuple(vectors[fits[best]].tolist()), float(worths[best])


@dataclass(slots=True)
class _Taken:
    """A load while its units are found."""

    worth: float
    at: int
    """Number of its size, without the units found so far."""
    kept: list[int] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)


class _Own:
    """Offers the units with members at one aggregator, and finds the best load."""

    def __init__(self, facts: Facts, prices: Prices, a: int, worth: Floats) -> None:
        self._facts, self._prices, self._a = facts, prices, a
        self._layers: list[_Layer] = []
        self._worth = worth
        for j, moved in facts.kept[a]:
            self._offer(j, moved)
        for j in facts.large[a]:
            self._offer_part(j)

    def best(self, most: int) -> list[_Taken]:
        """Return the best loads: of so many sizes, without the units that arrive."""
        prices = self._prices
        worth = self._worth - (prices.moves + prices.paused) * self._facts.displaced[self._a]
        best = [int(worth.argmax())] if most == 1 else np.argsort(-worth)[:most].tolist()
        return [self._units_of(_Taken(float(worth[at]), at)) for at in best if worth[at] > _TINY]

    def _offer(self, j: int, moved: int) -> None:
        prices, size = self._prices, int(self._facts.size[j])
        gain = float(prices.unit[j]) - prices.moves * moved - prices.paused * size * (moved > 0)
        if gain <= _TINY:
            return
        vector = self._facts.kinds[self._facts.kind[j]]
        first, offered = self._facts.sizes.grown(self._worth, vector, gain)
        after = self._worth.copy()
        np.maximum(after[first:], offered, out=after[first:])
        self._keep(j, after)

    def _offer_part(self, j: int) -> None:
        facts, prices = self._facts, self._prices
        after = None
        if prices.moves > 0:
            gains = [
                [(vector, n * worth - prices.moves * max(n - h, 0)) for n, vector in along]
                for worth, h, along in zip(
                    prices.member[j].tolist(),
                    facts.here[j, self._a].tolist(),
                    facts.parts[j].along,
                    strict=True,
                )
            ]
            after = _with_part(facts.sizes, self._worth, float(prices.part[j]), gains)
        if (j, self._a) in prices.stay:
            staying = facts.here[j, self._a]
            gain = float(prices.part[j] + prices.member[j] @ staying) + prices.stay[j, self._a]
            if gain > _TINY:
                first, offered = facts.sizes.grown(self._worth, tuple(staying.tolist()), gain)
                after = self._worth.copy() if after is None else after
                np.maximum(after[first:], offered, out=after[first:])
        if after is not None:
            self._keep(j, after)

    def _keep(self, j: int, after: Floats) -> None:
        self._layers.append((j, self._worth))
        self._worth = after

    def _units_of(self, found: _Taken) -> _Taken:
        """Find the units of a load, the last offered first."""
        facts, worth = self._facts, self._worth
        for j, before in reversed(self._layers):
            if worth[found.at] > before[found.at] + _TINY:
                if facts.kind[j] >= 0:
                    found.kept.append(j)
                    vector = facts.kinds[facts.kind[j]]
                else:
                    vector = self._part(j, before, found.at)
                    found.parts.append((j, vector))
                found.at -= facts.sizes.number(vector)
            worth = before
        return found

    def _part(self, j: int, before: Floats, at: int) -> Vector:
        facts, prices = self._facts, self._prices
        staying = facts.here[j, self._a]
        best: Vector = ()
        most = -np.inf
        if prices.moves > 0:
            vectors = facts.parts[j].vectors
            moved = (vectors - np.minimum(staying, vectors)).sum(axis=1)
            gains = vectors @ prices.member[j] - prices.moves * moved
            best, most = _best(facts.sizes, vectors, gains, before, at)
        if (j, self._a) in prices.stay and (staying <= facts.sizes.size(at)).all():
            gain = float(prices.member[j] @ staying) + prices.stay[j, self._a]
            if float(before[at - facts.sizes.number(staying)]) + gain >= most:
                return tuple(staying.tolist())
        return best


def _merged(facts: Facts, parts: Sequence[Part]) -> tuple[Part, ...]:
    """Join two parts of one unit: one with members that were here, and one that arrives."""
    joined: dict[int, Ints] = {}
    for j, vector in parts:
        joined[j] = joined.get(j, 0) + np.asarray(vector)
    return tuple(
        (j, tuple(np.minimum(vector, facts.members[j]).tolist()))
        for j, vector in sorted(joined.items())
    )
