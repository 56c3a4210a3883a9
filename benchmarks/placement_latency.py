"""Measures the latency of one placement as the site grows, with names and 8 optical switches.

    PYTHONPATH=. .venv/bin/python benchmarks/placement_latency.py --endpoints 1000,10000,100000

Jobs of Philly's sizes, weighted by GPU-time, arrive and end at ``--load``. The timing covers the
whole decision: ``scheduler.placement.place`` with the names of the endpoints, and
``FabricIndex.start``, which books them. The rival is the scan of schedulers without an incremental
index (phase 1 of Kueue's topology-aware scheduling: count for every workload again what fits in
each domain; then best fit), here over the same arrays in numpy and without optical switches,
re-homing or reasons: it decides less. Both run over the same stream in the same process,
alternately, with the garbage collector enabled. JSON on stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections import deque

import numpy as np

from scheduler.model import Aggregator, Endpoint, Fabric, Job, Locality, Placement, Request, Site
from scheduler.placement.index import FabricIndex
from scheduler.placement.place import place

SIZES = (1, 2, 4, 8, 16, 32)
SHARES = (0.30, 0.12, 0.22, 0.26, 0.07, 0.03)
"""Shares of jobs by size: between Philly's distributions by count and by GPU-time."""


def site(endpoints: int, ports: int, switches: int) -> Fabric:
    """Return a full site: every aggregator has the same number of ports on every optical switch."""
    size = ports // switches
    aggregators = -(-endpoints // ports)
    made = Site(
        f"uniform-{endpoints}",
        tuple(
            Endpoint(f"e{i}", ocs=f"ocs{i % switches}", server=f"srv{i // 8}")
            for i in range(endpoints)
        ),
        tuple(
            Aggregator(f"as{a}", {f"ocs{k}": size for k in range(switches)})
            for a in range(aggregators)
        ),
    )
    return Fabric(made, {f"e{i}": f"as{i // ports}" for i in range(endpoints)})


class Scan:
    """The rival: counts the free endpoints of every aggregator again for every job."""

    def __init__(self, fabric: Fabric) -> None:
        number = {a.name: i for i, a in enumerate(fabric.site.aggregators)}
        self.names = [e.name for e in fabric.site.endpoints]
        self.home = np.array([number[str(fabric.homes[n])] for n in self.names])
        self.free = np.ones(len(self.names), np.bool_)
        self.aggregators = len(number)

    def place(self, count: int) -> np.ndarray | None:
        """Return the endpoints by number: the tightest aggregator, else the fullest ones."""
        fits = np.bincount(self.home[self.free], minlength=self.aggregators)
        if int(fits.sum()) < count:
            return None
        best = np.where(fits >= count, fits, np.iinfo(np.int64).max)
        a = int(best.argmin())
        if fits[a] >= count:
            return np.flatnonzero(self.free & (self.home == a))[:count]
        order = np.argsort(-fits, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        idle = np.flatnonzero(self.free)
        return idle[np.argsort(rank[self.home[idle]], kind="stable")][:count]


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Return p50, p99 and max in microseconds."""
    us = np.array(seconds) * 1e6
    return {
        "p50_us": round(float(np.percentile(us, 50)), 2),
        "p99_us": round(float(np.percentile(us, 99)), 2),
        "max_us": round(float(us.max()), 2),
    }


def measure(endpoints: int, locality: Locality, given: argparse.Namespace) -> dict[str, object]:
    """Fill a site to the load, then time decisions while jobs arrive and end."""
    fabric = site(endpoints, given.ports, given.switches)
    index, scan = FabricIndex(fabric), Scan(fabric)
    random = np.random.default_rng(given.seed)
    live: deque[tuple[str, np.ndarray]] = deque()
    held, serial, waits = 0, 0, 0
    ours: list[float] = []
    rival: list[float] = []
    target = int(given.load * endpoints)
    clock = time.perf_counter if given.clock == "wall" else time.thread_time
    while len(ours) < given.decisions:
        size = int(random.choice(SIZES, p=SHARES))
        while held + size > target:
            # Jobs end in random order: take one at a random position.
            live.rotate(-int(random.integers(len(live))))
            name, theirs = live.popleft()
            held -= len(index.finish(name).endpoints)
            scan.free[theirs] = True
        full = held > 0.9 * target
        serial += 1
        request = Request(f"j{serial}", size, locality)
        begun = clock()
        found = place(index, request)
        if isinstance(found, Placement):
            index.start(Job(request.job, found.endpoints), found.moves)
        spent = clock() - begun
        if not isinstance(found, Placement):
            waits += 1
            continue
        begun = clock()
        theirs = scan.place(size)
        assert theirs is not None
        scan.free[theirs] = False
        named = [scan.names[e] for e in theirs.tolist()]
        scanned = clock() - begun
        assert len(named) == size
        if full:
            ours.append(spent)
            rival.append(scanned)
        held += size
        live.append((request.job, theirs))
    a, b = percentiles(ours), percentiles(rival)
    return {
        "endpoints": endpoints,
        "aggregators": len(fabric.site.aggregators),
        "switches": given.switches,
        "locality": locality.value,
        "decisions": len(ours),
        "waits": waits,
        "lightloom": a,
        "scan": b,
        "times_faster_p50": round(b["p50_us"] / a["p50_us"], 1),
        "times_faster_p99": round(b["p99_us"] / a["p99_us"], 1),
    }


def main() -> int:
    """Run every size and locality; progress on stderr."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoints", default="1000,10000,100000")
    parser.add_argument("--localities", default="preferred,regroup,strict")
    parser.add_argument("--ports", type=int, default=64)
    parser.add_argument("--switches", type=int, default=8)
    parser.add_argument("--load", type=float, default=0.9)
    parser.add_argument("--decisions", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu excludes waits on a machine with other load",
    )
    given = parser.parse_args()
    rows = []
    for endpoints in (int(text) for text in given.endpoints.split(",")):
        for locality in (Locality(text) for text in given.localities.split(",")):
            row = measure(endpoints, locality, given)
            rows.append(row)
            sys.stderr.write(f"{json.dumps(row)}\n")
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    document = {
        "machine": machine,
        "clock": given.clock,
        "load_average": os.getloadavg()[0],
        "rows": rows,
    }
    sys.stdout.write(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
