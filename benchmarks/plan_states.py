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


def small(seed: int) -> Fabric:
    """Return a random site of 4 to 15 endpoints with 1 to 4 optical switches and its jobs.

    Aggregators have few and unequal ports per switch, so that most jobs cannot become compact.
    """
    rng = random.Random(seed)
    count, switches, width = rng.randint(4, 15), rng.randint(1, 4), rng.randint(2, 5)
    endpoints = tuple(Endpoint(f"e{i}", ocs=f"o{rng.randrange(switches)}") for i in range(count))
    ports = [{f"o{k}": rng.randint(0, 3) for k in range(switches)} for _ in range(width)]
    homes: dict[str, str | None] = {}
    free = [dict(there) for there in ports]
    for e in endpoints:
        ocs = e.ocs or ""
        able = [a for a in range(width) if free[a][ocs] > 0]
        if not able:
            able = [rng.randrange(width)]
            ports[able[0]][ocs] += 1
            free[able[0]][ocs] += 1
        home = rng.choice(able)
        dark = rng.random() < 0.05
        homes[e.name] = None if dark else f"a{home}"
        free[home][ocs] -= not dark
    left = [e.name for e in endpoints]
    rng.shuffle(left)
    jobs: list[Job] = []
    while left and rng.random() < 0.9:
        size = rng.randint(1, 6)
        weight, pinned = rng.choice([1.0, 1.0, 2.0]), rng.random() < 0.05
        jobs.append(Job(f"j{len(jobs)}", tuple(left[:size]), pinned=pinned, weight=weight))
        left = left[size:]
    aggregators = (
        Aggregator(f"a{a}", {ocs: n for ocs, n in there.items() if n})
        for a, there in enumerate(ports)
    )
    return Fabric(Site(f"small {seed}", endpoints, tuple(aggregators)), homes, tuple(jobs))
