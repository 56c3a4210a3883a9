"""Places a submitted job on endpoints, or explains why it has to wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scheduler import ring
from scheduler.model import (
    Fabric,
    Locality,
    Move,
    Placement,
    RankOrder,
    Request,
    Spread,
    SpreadBy,
    Wait,
)
from scheduler.placement import apart
from scheduler.placement.index import DARK, FabricIndex
from scheduler.placement.pool import EndpointPool
from scheduler.placement.selection import (
    Capacity,
    balanced,
    best_fit,
    best_fit_one,
    homes_under,
    least_span,
    nearest,
    spread_blindly,
)
from scheduler.placement.spares import pick

_NO_MOVES: dict[int, int] = {}


def place(fabric: Fabric | FabricIndex, request: Request) -> Placement | Wait:
    """Select endpoints for a request; never moves an endpoint that belongs to a job.

    With a FabricIndex this takes microseconds and changes nothing; a Fabric is indexed first.

    Wait codes: ``no_match`` (no endpoint matches), ``not_enough_endpoints`` (more than the
    site has), ``unavailable`` (quarantined, lost or dark), ``busy`` (held by other jobs),
    ``locality`` (strict only: the present homes do not allow the least span), ``spread`` (the
    idle ones are not on enough servers or aggregators for its spread), ``refused`` (too few are
    left beside those on which its start failed), ``never_spread`` (the
    site, or the named endpoints, are not), ``spares`` (too few idle ones are left beside it).
    Raises ValueError when ``request.count`` is below 1.
    """
    if request.count < 1:
        raise ValueError(f"job {request.job} asks for {request.count} endpoints; at least 1")
    index = fabric if isinstance(fabric, FabricIndex) else FabricIndex(fabric)
    pool = index.pool(request)
    alone = request.count == 1 and pool.lit and not request.endpoints
    if alone and request.locality is not Locality.ANY:
        # The common case: one endpoint always has the least span.
        placed: Placement | Wait = Placement(request.job, (index.names[best_fit_one(index, pool)],))
    else:
        placed = _placed(index, request, pool)
    return with_spares(index, request, placed) if request.spares else placed


def with_spares(index: FabricIndex, request: Request, placed: Placement | Wait) -> Placement | Wait:
    """Add the spares that are reserved beside a placement; a job that needs more of them waits."""
    if isinstance(placed, Wait):
        return placed
    after = {
        index.number[move.endpoint]: DARK if move.target is None else index.at[move.target]
        for move in placed.moves
    }
    found = pick(index, request, [index.number[n] for n in placed.endpoints], after)
    if request.spares_needed and len(found) < request.spares:
        return Wait(
            request.job,
            "spares",
            f"needs {_endpoints(request.spares, 'idle ')} as spares beside its"
            f" {_endpoints(request.count)}, there are {len(found)}",
        )
    return replace(placed, spares=tuple(index.names[e] for e in found))


def _placed(index: FabricIndex, request: Request, pool: EndpointPool) -> Placement | Wait:
    """Place a request without regard to its spares."""
    attempt = _Attempt(index, request, pool)
    refusal = attempt.refusal()
    if refusal is not None:
        return refusal
    apart_by = apart.binding(request)
    if apart_by is not None:
        return attempt.spread_out(apart_by)
    if request.locality is Locality.REGROUP:
        return attempt.by_rehoming()
    if request.locality is Locality.ANY and not request.endpoints:
        return attempt.placement(spread_blindly(index, attempt.pool, request.count))
    chosen = attempt.in_place()
    if request.locality is Locality.STRICT:
        return attempt.with_least_span(chosen)
    return attempt.placement(chosen)


@dataclass(slots=True)
class _Attempt:
    """The placement of one request on one index."""

    index: FabricIndex
    request: Request
    pool: EndpointPool

    @property
    def wanted(self) -> str:
        """The request in words: ``4 endpoints (kind gpu, model V100)``."""
        details = [f"model {self.request.model}"] if self.request.model is not None else []
        if self.request.kind != "gpu":
            details.insert(0, f"kind {self.request.kind}")
        if self.request.min_memory_bytes:
            details.append(f"at least {self.request.min_memory_bytes} bytes of memory")
        if self.request.volumes:
            details.append(f"volume {' and '.join(sorted(self.request.volumes))}")
        noun = _endpoints(self.request.count)
        return f"{noun} ({', '.join(details)})" if details else noun

    def wait(self, code: str, reason: str, moves_needed: int | None = None) -> Wait:
        return Wait(self.request.job, code, reason, moves_needed)

    def refusal(self) -> Wait | None:
        """Return why there are not enough idle endpoints, None if there are."""
        pool, count = self.pool, self.request.count
        if avoided := self.request.avoid.intersection(self.request.endpoints):
            return self.wait("refused", f"a start on {_listed(avoided)} failed lately")
        if self.request.endpoints:
            refusal = self.refusal_of_named()
            if refusal is not None:
                return refusal
        elif pool.idle < count:
            return self.refusal_of_count()
        if pool.lit < count and self.request.locality is not Locality.REGROUP:
            return self.wait(
                "unavailable",
                f"needs {self.wanted}; of {pool.idle} idle ones {pool.idle - pool.lit} are dark"
                " (locality regroup lights them)",
            )
        return None

    def refusal_of_named(self) -> Wait | None:
        """Return why the named endpoints cannot be used, None if they can."""
        named, index = self.request.endpoints, self.index
        if len(set(named)) != len(named) or len(named) != self.request.count:
            return self.wait(
                "no_match",
                f"needs {self.wanted}, but names {len(set(named))} different ones",
            )
        for name in named:
            if name not in index.number:
                return self.wait("no_match", f"the site has no endpoint {name}")
            e = index.number[name]
            if not self.pool.of([e]):
                return self.wait("no_match", f"{name} does not match: needs {self.wanted}")
            if index.owner[e] is not None:
                return self.wait("busy", f"{name} is held by job {index.owner[e]}")
            if e in index.unavailable:
                return self.wait("unavailable", f"{name} is unavailable")
        return None

    def refusal_of_count(self) -> Wait:
        """Return why there are fewer idle endpoints than requested."""
        count, have, total = self.request.count, self.pool.total, self.index.size
        avoided = self.request.avoid & self.index.number.keys()
        if avoided and have < count:
            text = f"needs {self.wanted}, and a start on {_listed(avoided)} failed lately"
            return self.wait("refused", text)
        if have == 0 and total > 0:
            return self.wait(
                "no_match", f"needs {self.wanted}, none of the site's {total} endpoints match"
            )
        if have < count:
            matching = "" if have == total else " that match"
            return self.wait(
                "not_enough_endpoints", f"needs {self.wanted}, the site has {have}{matching}"
            )
        if have - self.pool.lost < count:
            return self.wait(
                "unavailable",
                f"needs {self.wanted}, {self.pool.lost} of {have} are unavailable",
            )
        return self.wait("busy", f"needs {self.wanted}, {self.pool.idle} of {have} are idle")

    def in_place(self) -> list[int]:
        """Select lit idle endpoints without moves; there must be enough."""
        if self.request.endpoints:
            return [self.index.number[n] for n in self.request.endpoints]
        return best_fit(self.index, self.pool, self.request.count)

    def placement(self, chosen: Sequence[int], after: dict[int, int] = _NO_MOVES) -> Placement:
        """Order the selected endpoints as ranks; ``after`` has the new homes of idle endpoints."""
        index = self.index
        homes = [after.get(e, index.home[e]) for e in chosen]
        names = tuple([index.names[e] for e in chosen])
        places = len(set(homes))
        if places == 1:
            return Placement(self.request.job, names, self._moves(after))
        if self.request.rank_order is RankOrder.AGGREGATOR:
            names = ring.order(names, {n: str(home) for n, home in zip(names, homes, strict=True)})
        members = [index.site.endpoints[e] for e in chosen]
        return Placement(
            job=self.request.job,
            endpoints=names,
            moves=self._moves(after),
            span=places,
            span_possible=index.bound.least(members, self.request.spread),
        )

    def _moves(self, after: dict[int, int]) -> tuple[Move, ...]:
        if not after:
            return ()
        index = self.index
        names = (*(a.name for a in index.site.aggregators), None)  # the last is number DARK
        return tuple(
            Move(index.names[e], names[index.home[e]], names[a]) for e, a in sorted(after.items())
        )

    def spread_out(self, spread: Spread) -> Placement | Wait:
        """Place a request whose endpoints must be spread."""
        index, pool, count = self.index, self.pool, self.request.count
        locality = self.request.locality
        if self._most(spread, idle=True) < count:
            return self.crowded(spread)
        found = self._apart_in_place(spread)
        if locality not in {Locality.REGROUP, Locality.STRICT}:
            return self.crowded(spread) if found is None else self._selected(found)
        least = pool.least.get((count, spread))
        if least is None:
            known = apart.least(index, pool, count, spread)
            least = pool.least[count, spread] = 0 if known is None else known
        if least == 0:
            return self.crowded(spread)
        if found is not None and found.span <= least:
            return self._selected(found)
        reached = apart.rehomed(index, pool, count, spread)
        if locality is Locality.STRICT:
            return self._scattered(spread, least, found, reached)
        best = found
        if reached is not None and (found is None or reached.span < found.span):
            best = reached
        return self.crowded(spread) if best is None else self._selected(best)

    def _scattered(
        self,
        spread: Spread,
        least: int,
        found: apart.Selection | None,
        reached: apart.Selection | None,
    ) -> Wait:
        """Return why a strict job that must be spread waits."""
        if reached is not None and reached.span <= least:
            needed: int | None = 0
        else:
            index, pool, count = self.index, self.pool, self.request.count
            needed = apart.moves_needed(index, pool, count, spread, least)
        now = "none fits now" if found is None else f"the best now is {found.span}"
        return self.wait(
            "locality",
            f"needs {self.wanted} under {aggregators_text(least)}, {_in_words(spread)};"
            f" {now}; {_advice(needed)}",
            needed,
        )

    def _apart_in_place(self, spread: Spread) -> apart.Selection | None:
        """Select lit idle endpoints without moves: as for other jobs, if that is spread enough."""
        index, pool, count = self.index, self.pool, self.request.count
        if pool.lit < count:
            return None
        blind = self.request.locality is Locality.ANY and not self.request.endpoints
        usual = spread_blindly(index, pool, count) if blind else self.in_place()
        if apart.keeps(index, spread, usual):
            return apart.Selection(usual, {}, index.span_of(usual))
        if self.request.endpoints:
            return None  # the selection is all there is
        return apart.in_place(index, pool, count, spread)

    def _selected(self, found: apart.Selection) -> Placement:
        chosen = found.chosen
        if self.request.endpoints:
            chosen = [self.index.number[n] for n in self.request.endpoints]
        return self.placement(chosen, found.after)

    def _most(self, spread: Spread, *, idle: bool) -> int:
        return apart.most_by_server(self.index, self.pool, spread, idle=idle)

    def crowded(self, spread: Spread) -> Wait:
        """Return why the idle endpoints, or any, cannot be spread enough."""
        index, pool, count = self.index, self.pool, self.request.count
        words = _in_words(spread)
        most = self._most(spread, idle=False)
        if self.request.endpoints and most < count:
            return self.wait("never_spread", f"the named endpoints are not spread: {words}")
        if most < count or apart.least(index, pool, count, spread) is None:
            return self.wait(
                "never_spread",
                f"needs {self.wanted}, {words}; the site's servers and aggregators never allow it",
            )
        on = "aggregators" if spread.by is SpreadBy.AGGREGATOR else "servers"
        return self.wait(
            "spread", f"needs {self.wanted}, {words}; the idle ones are on too few {on}"
        )

    def by_rehoming(self) -> Placement | Wait:
        """Place with the least span that moves of idle endpoints reach.

        A job that starts scattered gets endpoints that a regroup can bring closest together.
        """
        index, pool, count = self.index, self.pool, self.request.count
        in_place: list[int] | None = None
        if pool.lit >= count:
            in_place = self.in_place()
            span = index.span_of(in_place)
            # An empty site would not give less: no move helps.
            if span == 1 or span <= self._least(in_place):
                return self.placement(in_place)
        capacity = Capacity.now(index, pool)
        target = capacity.fewest(count)
        if target is None:
            return self.wait(
                "unavailable",
                f"needs {self.wanted}, aggregators have ports for"
                f" {capacity.total()} of the {pool.idle} idle ones",
            )
        one_switch = index.fixed_slot <= 1
        if one_switch and in_place is not None and span <= len(target):
            return self.placement(in_place)
        limits = capacity.limits(target).tolist()
        chosen = nearest(index, pool, balanced(limits, count, [0] * len(limits)), target)
        rehomed = self.placement(chosen, homes_under(index, chosen, target))
        if one_switch or rehomed.span <= self._least(chosen):
            return rehomed
        tried = [rehomed, *self._balanced(capacity)]
        if in_place is not None:
            tried.append(self.placement(in_place))
        return min(tried, key=lambda p: (p.span_possible, self._crowding(p), p.span, len(p.moves)))

    def _crowding(self, placement: Placement) -> int:
        """Return the most endpoints of one optical switch: fewer need fewer ports in one place."""
        index = self.index
        slots = Counter(index.slot[index.number[name]] for name in placement.endpoints)
        return max(slots.values())

    def _balanced(self, capacity: Capacity) -> list[Placement]:
        """Place as many endpoints of each switch, if there are as many optical ones."""
        index, count, by_slot = self.index, self.request.count, capacity.candidates.tolist()
        if sum(by_slot) < count:
            return []
        wanted = balanced(by_slot, count, [0] * len(by_slot))
        target = replace(
            capacity, candidates=np.array(wanted), fixed=np.zeros_like(capacity.fixed)
        ).fewest(count)
        if target is None:
            return []
        chosen = nearest(index, self.pool, [*wanted, 0], target)
        return [self.placement(chosen, homes_under(index, chosen, target))]

    def with_least_span(self, chosen: Sequence[int]) -> Placement | Wait:
        """Place with the least span of an empty site; otherwise wait and report what it needs."""
        best = self.index.span_of(chosen)
        least = 1 if best == 1 else self._least(chosen)
        if best <= least:
            return self.placement(chosen)
        reach = self.by_rehoming()
        needed = (
            0 if isinstance(reach, Placement) and reach.span <= least else self._moves_needed(least)
        )
        return self.wait(
            "locality",
            f"needs {self.wanted} under {aggregators_text(least)}, the best now is {best};"
            f" {_advice(needed)}",
            needed,
        )

    def _least(self, chosen: Sequence[int]) -> int:
        """Return the least span that this request has on the site without jobs."""
        index, count = self.index, self.request.count
        if self.request.endpoints:
            return index.bound.least([index.site.endpoints[e] for e in chosen])
        return least_span(index, self.pool, count)

    def _moves_needed(self, least: int) -> int | None:
        """Return how many busy endpoints must leave to make room, None if it is impossible.

        They need a port of their optical switch elsewhere; the planner decides whether their
        own jobs stay compact.
        """
        index = self.index
        capacity = Capacity.now(index, self.pool)
        evictable = index.held - index.stuck
        widest = np.argsort(-(capacity.cover() + evictable.sum(axis=1)), kind="stable")
        sets = widest[:least].reshape(1, -1) if least > 1 else widest.reshape(-1, 1)
        room = capacity.ports[sets].sum(axis=1)
        limits = np.minimum(room, capacity.candidates)
        missing = self.request.count - limits.sum(axis=1) - capacity.fixed[sets].sum(axis=1)
        elsewhere = capacity.ports.sum(axis=0) - room
        extra = np.minimum(
            np.minimum(capacity.candidates - limits, evictable[sets].sum(axis=1)), elsewhere
        )
        possible = missing[extra.sum(axis=1) >= missing]
        return int(possible.min()) if possible.size else None


def _endpoints(count: int, which: str = "") -> str:
    return f"{count} {which}endpoint" if count == 1 else f"{count} {which}endpoints"


def _listed(names: frozenset[str], most: int = 5) -> str:
    """Return some names in words."""
    some = ", ".join(sorted(names)[:most])
    return some if len(names) <= most else f"{some} and {len(names) - most} more"


def _advice(needed: int | None) -> str:
    if needed is None:
        return "no regroup helps"
    if needed == 0:
        return "re-homing idle endpoints would make it fit"
    return f"moving {_endpoints(needed, 'running ')} would make it fit"


def _in_words(spread: Spread) -> str:
    under = "" if spread.by is SpreadBy.SERVER else " and under one aggregator"
    return f"at most {spread.most} in one server{under}"


def aggregators_text(count: int) -> str:
    """Return a number of aggregators in words."""
    return f"{count} aggregator" if count == 1 else f"{count} aggregators"
