"""Generates fabrics for plans: sizes from public workloads, half of the jobs scattered."""

from __future__ import annotations

import random
from collections.abc import Mapping

from scheduler.model import Aggregator, Endpoint, Fabric, Job, Site

SIZES: Mapping[str, Mapping[int, float]] = {
    # Share of the running jobs at a random moment: job sizes weighted by run time.
    # Philly: Jeon et al., ATC'19 (CC-BY-4.0), 49,348 jobs of the first part of the trace.
    "philly": {1: 0.554, 2: 0.079, 4: 0.14, 8: 0.208, 16: 0.017, 32: 0.002},
    # The same, changed by one or two, so that sizes do not divide each other.
    "odd": {1: 0.4, 2: 0.06, 3: 0.1, 5: 0.1, 6: 0.06, 7: 0.12, 9: 0.1, 14: 0.04, 17: 0.02},
    # Kalos: Acme, NSDI'24 (CC-BY-4.0), jobs of the converted trace.
    "kalos": {1: 53, 2: 4, 4: 2, 8: 22, 12: 3, 16: 3, 32: 49, 37: 1, 40: 1, 64: 49, 128: 4},
}


def scattered(
    aggregators: int, ports: int, load: float, sizes: str, seed: int, *, switches: int = 1
) -> Fabric:
    """Return a site filled to ``load``: half of the jobs at random, half first fit.

    Jobs are added until the load is reached. Endpoint ``i`` is on optical switch ``i mod K``
    and all ports are in use, by jobs or idle endpoints.
    """
    rng = random.Random(seed)
    count = aggregators * ports
    endpoints = tuple(Endpoint(f"g{i}", ocs=f"o{i % switches}") for i in range(count))
    site = Site(
        f"{aggregators}x{ports}",
        endpoints,
        tuple(
            Aggregator(f"a{a}", {f"o{k}": ports // switches for k in range(switches)})
            for a in range(aggregators)
        ),
    )
    homes = {e.name: f"a{i // ports}" for i, e in enumerate(endpoints)}
    shuffled = list(range(count))
    rng.shuffle(shuffled)
    free = bytearray(b"\1") * count
    first = used = 0
    jobs: list[Job] = []
    values, weights = list(SIZES[sizes]), list(SIZES[sizes].values())
    goal = round(load * count)
    while used < goal:
        size = min(rng.choices(values, weights)[0], goal - used)
        members: list[int] = []
        if rng.random() < 0.5:
            while len(members) < size:
                e = shuffled.pop()
                if free[e]:
                    members.append(e)
        else:
            while len(members) < size:
                if free[first]:
                    members.append(first)
                first += 1
        for e in members:
            free[e] = 0
        used += size
        jobs.append(Job(f"j{len(jobs)}", tuple(f"g{e}" for e in members)))
    return Fabric(site, homes, tuple(jobs))
