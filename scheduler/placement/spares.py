"""Selects the idle endpoints that are reserved beside a job: its spares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from scheduler.model import Request
from scheduler.placement.index import DARK, FabricIndex


def pick(
    index: FabricIndex, request: Request, chosen: Sequence[int], after: Mapping[int, int]
) -> list[int]:
    """Return up to ``request.spares`` idle endpoints beside the job's own, the best first.

    First those whose light can reach the job's aggregators: on an optical switch of one of the
    job's endpoints with ports there, or there already. Of these, those on servers with the
    fewest of its ranks; then those that are worth least to other jobs: dark ones, and those
    under the aggregator with the fewest idle ones. ``after`` has the homes after the moves of
    the placement.
    """
    pool = index.pool(replace(request, endpoints=()))
    own = frozenset(chosen)
    homes = {after.get(e, index.home[e]) for e in chosen} - {DARK}
    ports = index.ports[sorted(homes)].sum(axis=0)
    slots = {index.slot[e] for e in chosen}
    ranks = Counter(index.server[e] for e in chosen)
    idle = [e for e in pool.of(range(index.size)) if index.is_idle(e) and e not in own]
    free = Counter(after.get(e, index.home[e]) for e in idle)

    def key(e: int) -> tuple[bool, bool, int, int, int]:
        s, home = index.slot[e], after.get(e, index.home[e])
        reaches = home in homes or (s != index.fixed_slot and ports[s] > 0)
        near = s in slots or home in homes
        worth = 0 if home == DARK else free[home]
        return not reaches, not near, ranks[index.server[e]], worth, e

    picked: list[int] = []
    while idle and len(picked) < request.spares:
        best = min(idle, key=key)
        idle.remove(best)
        picked.append(best)
        # The next one stands elsewhere if it can, and takes the rest of the same aggregator.
        ranks[index.server[best]] += 1
        free[after.get(best, index.home[best])] -= 1
    return picked
