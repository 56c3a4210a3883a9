"""Computes span and fragmentation, as the project defines them.

A dark endpoint reaches no other, so each one counts as a place of its own in a span.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from scheduler.model import Endpoint, Fabric, Spread, SpreadBy
from scheduler.occupancy import all_homes, capacities


def span(endpoints: Iterable[str], homes: Mapping[str, str | None]) -> int:
    """Return the number of aggregators that the endpoints touch."""
    places = [homes.get(name) for name in endpoints]
    return len({p for p in places if p is not None}) + sum(p is None for p in places)


class SpanBound:
    """Lower bound on the span that any set of homes gives a job's endpoints, for one fabric.

    With ``s`` members of which ``s_k`` hang on optical switch ``k``, and ``P_ak`` ports of
    aggregator ``a`` on ``k`` that endpoints can have: max(ceil(s / max P_a),
    max_k ceil(s_k / max_a P_ak)), and at least the number of aggregators its hard-wired members
    are on. With a spread over aggregators also ceil(s / most), see ``least_apart``.
    """

    def __init__(self, fabric: Fabric) -> None:
        site = fabric.site
        wired = Counter(e.fixed for e in site.endpoints if e.fixed is not None)
        optical = dict.fromkeys((a.name for a in site.aggregators), 0)
        self._ports: Counter[str] = Counter()
        for (name, ocs), ports in capacities(fabric).items():
            optical[name] += ports
            self._ports[ocs] = max(self._ports[ocs], ports)
        # A site description may omit fixed_ports: count the hard-wired endpoints as well.
        fixed = {a.name: max(a.fixed_ports, wired[a.name]) for a in site.aggregators}
        self.widest = max((optical[name] + fixed[name] for name in optical), default=0)
        """Ports of the largest aggregator."""
        self._optical = max(optical.values(), default=0)

    def least(
        self,
        members: Sequence[Endpoint],
        spread: Spread | None = None,
        homes: Mapping[str, str | None] | None = None,
    ) -> int:
        """Return the bound for these endpoints; 0 for none.

        ``homes`` are the present ones: a job that has more under an aggregator than its spread
        allows may keep them there.
        """
        if spread is not None and spread.by is SpreadBy.AGGREGATOR:
            there = _count_homes(members, homes) if homes is not None else ()
            return max(self.least(members), least_apart(len(members), spread.most, there))
        optical = Counter(e.ocs for e in members if e.ocs is not None)
        fixed = {e.fixed for e in members if e.fixed is not None}
        bounds = [len(fixed), _ceil(len(members), self.widest)]
        bounds.append(_ceil(optical.total(), self._optical))
        bounds.extend(_ceil(count, self._ports[ocs]) for ocs, count in optical.items())
        return max(bounds)


def _count_homes(members: Iterable[Endpoint], homes: Mapping[str, str | None]) -> Sequence[int]:
    places = Counter(e.fixed or homes.get(e.name) for e in members)
    places.pop(None, None)
    return tuple(places.values())


def least_apart(count: int, most: int, there: Iterable[int] = ()) -> int:
    """Return the fewest aggregators for ``count`` members, at most ``most`` under each.

    ``there`` counts the members under each aggregator now: more than ``most`` may stay, but
    never more than there are.
    """
    aggregators = 0
    for n in sorted(there, reverse=True):
        if n <= most or count <= 0:
            break
        count -= n
        aggregators += 1
    return aggregators + -(-max(count, 0) // most)


def _ceil(count: int, size: int) -> int:
    # Without ports the members stay dark, one place each.
    return -(-count // size) if size > 0 else count


def total_excess_span(
    fabric: Fabric,
    homes: Mapping[str, str | None],
    before: Mapping[str, str | None] | None = None,
) -> int:
    """Return the sum of the jobs' excess spans, unweighted.

    ``before`` are the homes before a plan, which a job beyond its spread may keep.
    """
    bound = SpanBound(fabric)
    by_name = {e.name: e for e in fabric.site.endpoints}
    here = homes if before is None else before
    return sum(
        span(job.endpoints, homes)
        - bound.least([by_name[n] for n in job.endpoints], job.spread, here)
        for job in fabric.jobs
    )


def free_by_aggregator(fabric: Fabric) -> dict[str, int]:
    """Count the idle endpoints under each aggregator, in site order."""
    free = {a.name: 0 for a in fabric.site.aggregators}
    homes = all_homes(fabric)
    for endpoint in fabric.idle():
        home = homes[endpoint.name]
        if home is not None:
            free[home] += 1
    return free


def stranded(free: Mapping[str, int], size: int) -> float:
    """Return the share of free endpoints that no job of ``size`` can use compactly.

    1 - size * sum_a floor(free_a / size) / sum_a free_a; 0.0 when nothing is free.
    """
    total = sum(free.values())
    usable = sum(n // size for n in free.values()) * size
    return 1.0 - usable / total if total else 0.0


def external_fragmentation(free: Mapping[str, int]) -> float:
    """Return 1 - max_a free_a / sum_a free_a; 0.0 when nothing is free."""
    total = sum(free.values())
    return 1.0 - max(free.values()) / total if total else 0.0
