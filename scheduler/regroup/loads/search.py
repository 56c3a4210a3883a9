"""Searches by loads: a bound from the relaxation, then layouts of whole loads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from scheduler.program import Floats
from scheduler.regroup.clock import SearchClock
from scheduler.regroup.counts import Counts, MemberLayout, RegroupProblem
from scheduler.regroup.loads.facts import Facts, Load, Part, Vector, facts_of
from scheduler.regroup.loads.master import Master
from scheduler.regroup.loads.pricing import Prices, price
from scheduler.regroup.program.terms import MOVES

_STEADY, _FALL = 3, 0.003
"""The relaxation is steady if its value falls by no larger share in so many rounds."""
_SMOOTH = 0.5
"""Share of the best prices in those that loads are priced by: they swing less."""
_CLOSE = 0.999
"""A bound is as good as it gets at less than a member from the relaxation."""
_SIZES = 20
"""Sizes of which the best load of each aggregator may be one of the others."""
_BLUR = 0.5
"""Least factor of a share where roundings differ."""
_TINY = 1e-6

Places = list[tuple[Counts, Counts] | None]
"""For each unit: members lit per slot, and dark ones; None if it has no place."""
Put = tuple[int, Vector]
"""An aggregator, and what of a unit is there."""


class LoadSearch:
    """One search for one criterion."""

    def __init__(
        self,
        problem: RegroupProblem,
        criterion: str,
        caps: Mapping[str, float],
        clock: SearchClock,
        others: int,
    ) -> None:
        """``caps`` are the values of the earlier disruptions.

        So many ``others`` per aggregator are added to the loads of the relaxation, which rarely
        make a layout. HiGHS chooses sooner among few, and rounding finds better ones among many.
        """
        self._facts = facts_of(problem, shards=MOVES in (criterion, *caps))
        self._clock = clock
        self._master = Master(self._facts, criterion, caps)
        self.bound = -np.inf
        """Lower bound of the criterion."""
        self._center = self._master.guess()
        """The prices that prove it."""
        self._others = others
        self._best: tuple[int, ...] = ()
        """Numbers of the loads of the best layout known."""

    def start(self, layout: MemberLayout) -> None:
        """Begin with the loads of a layout."""
        loads = self._loads_of(layout)
        for a, load in loads.items():
            self._master.add(a, load)
        self._best = tuple(range(len(loads)))

    def generate(self, seconds: float, *, floor: float = -np.inf, steady: bool = False) -> None:
        """Add loads until none is worth having: ``bound`` is as good as it gets then.

        That is not needed where the relaxation falls to a known ``floor``. It is ``steady``
        before, when its value hardly falls any more.
        """
        master, until = self._master, self._clock.left() - seconds
        values: list[float] = []
        while self._clock.left() > until:
            spent = master.seconds()
            value, duals = master.solve()
            self._clock.add(master.seconds() - spent)
            values.append(value)
            if value - max(self.bound, floor) < _CLOSE:
                break
            if steady and len(values) > _STEADY and values[-1 - _STEADY] - value < _FALL * value:
                break
            added = self._offer(self._center.towards(duals, 1.0 - _SMOOTH))
            if not added and not self._offer(duals, rented=True):
                break
        if self._clock.left() > 0:
            self._add_others()

    def rounded(self, rng: np.random.Generator | None = None) -> Places:
        """Return places by loads that the relaxation chooses; a unit that they omit has none.

        With ``rng`` they are others each time.
        """

        def blurred(shares: Floats) -> Floats:
            return shares if rng is None else shares * rng.uniform(_BLUR, 1.0, len(shares))

        spent = self._master.seconds()
        self._best = self._master.rounded(lambda: self._clock.left() > 0, blurred)
        self._clock.add(self._master.seconds() - spent)
        return self._places_of(self._best)

    def choose(self, seconds: float) -> Places | None:
        """Make the solver choose among all loads so far; None if it found nothing better.

        A unit that it leaves out, for one that has no room, has no place.
        """
        chosen = self._master.choose(self._best, seconds)
        self._clock.add(chosen.seconds)
        if not chosen.loads or set(chosen.loads) == set(self._best):
            return None
        self._best = chosen.loads
        return self._places_of(chosen.loads)

    def _places_of(self, taken: Collection[int]) -> Places:
        return _places(self._facts, dict(self._master.loads[i] for i in taken))

    def _offer(self, prices: Prices, *, rented: bool = False) -> int:
        """Add the best load of each aggregator; return how many are new."""
        found = price(self._facts, prices)
        added = 0
        for a, best in enumerate(found):
            least = self._master.rents[a] if rented else 0.0
            if best and best[0].worth > least + _TINY:
                added += self._master.add(a, best[0].load)
        bound = self._master.bound(prices, [best[0].worth for best in found if best])
        if bound > self.bound:
            self.bound, self._center = bound, prices
        return added

    def _add_others(self) -> None:
        """Add loads that are nearly worth having."""
        _, duals = self._master.solve()
        found = [
            (self._master.rents[a] - one.worth, a, n, one.load)
            for a, best in enumerate(price(self._facts, duals, _SIZES))
            for n, one in enumerate(best)
        ]
        found.sort(key=lambda item: item[:3])
        for _, a, _, load in found[: self._others * self._facts.problem.aggregators]:
            self._master.add(a, load)

    def _loads_of(self, layout: MemberLayout) -> dict[int, Load]:
        """Return the loads of a layout, without units that have more parts than they may."""
        facts = self._facts
        width, switches = facts.problem.aggregators, len(facts.sizes.shape)
        kept: dict[int, list[int]] = {}
        arriving: dict[int, Counter[int]] = {}
        parts: dict[int, list[Part]] = {}
        for j, lit in enumerate(layout.lit):
            vectors: dict[int, list[int]] = {}
            for slot, n in lit.items():
                vectors.setdefault(slot % width, [0] * switches)[slot // width] = n
            if len(vectors) > facts.least[j]:
                continue
            for a, vector in vectors.items():
                if facts.kind[j] < 0:
                    parts.setdefault(a, []).append((j, tuple(vector)))
                elif any(j == unit for unit, _ in facts.kept[a]):
                    kept.setdefault(a, []).append(j)
                else:
                    arriving.setdefault(a, Counter())[facts.kind[j]] += 1
        return {
            a: Load(
                tuple(kept.get(a, ())),
                tuple(sorted(arriving.get(a, Counter()).items())),
                tuple(parts.get(a, ())),
            )
            for a in sorted({*kept, *arriving, *parts})
        }


def _places(facts: Facts, held: Mapping[int, Load]) -> Places:
    """Return the place of each unit; of those that arrive, who has members there comes first."""
    at: dict[int, list[Put]] = {}
    for a, load in held.items():
        for j in load.kept:
            at[j] = [(a, facts.kinds[facts.kind[j]])]
        for j, vector in load.parts:
            at.setdefault(j, []).append((a, vector))
    waiting: dict[int, list[int]] = {}
    for j, v in enumerate(facts.kind):
        if v >= 0 and j not in at:
            waiting.setdefault(v, []).append(j)
    for a, load in held.items():
        for v, n in load.arriving:
            queue = waiting.get(v, [])
            queue.sort(key=lambda j: int(facts.here[j, a].sum()))
            for _ in range(min(n, len(queue))):
                at[queue.pop()] = [(a, facts.kinds[v])]
    return [_place(facts, j, at.get(j, ())) for j in range(len(facts.least))]


def _place(facts: Facts, j: int, parts: Sequence[Put]) -> tuple[Counts, Counts] | None:
    """Return a unit's place; None if its parts are not all of it."""
    width = facts.problem.aggregators
    placed = np.zeros(len(facts.sizes.shape), np.int64)
    lit: dict[int, int] = {}
    for a, vector in parts:
        placed += np.asarray(vector)
        lit |= {k * width + a: int(n) for k, n in enumerate(vector) if n}
    return (lit, {}) if (placed == facts.members[j]).all() else None
