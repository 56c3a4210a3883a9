"""Measures one queue decision of the controller as endpoints and waiting jobs grow.

    PYTHONPATH=. .venv/bin/python benchmarks/queue_look.py --endpoints 1000,10000 --waiting 100,1000

A decision is ``controller.jobs.decisions.decide_and_explain``: it builds the index from the fabric,
and decides and explains every waiting job. Only 2 % of the site is free, so almost no job starts
and all others need a reason. JSON on stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time

import numpy as np
from placement_latency import SHARES, SIZES, site

from controller.jobs.decisions import decide_and_explain
from controller.state.records import JobRecord, JobSpec
from scheduler.model import Fabric, Job, Locality, Placement, Request
from scheduler.placement.index import FabricIndex
from scheduler.placement.place import place
from scheduler.queue.model import ProjectShare, QueuePolicy


def full(endpoints: int, ports: int, switches: int, seed: int) -> tuple[Fabric, list[JobRecord]]:
    """Return a site with 2 % free endpoints and the records of its jobs."""
    index = FabricIndex(site(endpoints, ports, switches))
    random = np.random.default_rng(seed)
    jobs: list[JobRecord] = []
    while index.free > 0.02 * endpoints:
        size = int(random.choice(SIZES, p=SHARES))
        name = f"r{len(jobs)}"
        found = place(index, Request(name, size))
        if not isinstance(found, Placement):
            break
        index.start(Job(name, found.endpoints))
        jobs.append(
            JobRecord(
                name,
                JobSpec(name=name, count=size, time_limit_s=float(random.integers(100, 90000))),
                "image",
                0.0,
                state="running",
                endpoints=found.endpoints,
                started_at=0.0,
            )
        )
    return index.snapshot(), jobs


def main() -> int:
    """Run every combination; progress on stderr."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoints", default="1000,10000")
    parser.add_argument("--waiting", default="100,1000")
    parser.add_argument("--ports", type=int, default=64)
    parser.add_argument("--switches", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rows = []
    for endpoints in (int(text) for text in given.endpoints.split(",")):
        fabric, running = full(endpoints, given.ports, given.switches, given.seed)
        for waiting in (int(text) for text in given.waiting.split(",")):
            jobs = [
                JobRecord(
                    f"w{i}",
                    JobSpec(
                        name=f"w{i}",
                        count=(48, 32, 16)[i % 3],
                        locality=Locality.STRICT if i % 2 == 0 else Locality.PREFERRED,
                        priority=i % 5,
                    ),
                    "image",
                    float(i),
                )
                for i in range(waiting)
            ]
            spent = []
            for _ in range(given.repeat):
                begun = time.perf_counter()
                _, seen = decide_and_explain(
                    fabric,
                    [*running, *jobs],
                    [ProjectShare("default")],
                    QueuePolicy(),
                    lambda name: True,
                    now=1000.0,
                )
                spent.append(time.perf_counter() - begun)
            rows.append(
                {
                    "endpoints": endpoints,
                    "running": len(running),
                    "waiting": waiting,
                    "explained": len(seen.holds),
                    "look_ms_median": round(1000 * statistics.median(spent), 1),
                    "look_ms_max": round(1000 * max(spent), 1),
                }
            )
            sys.stderr.write(f"{json.dumps(rows[-1])}\n")
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    document = {"machine": machine, "load_average": os.getloadavg()[0], "rows": rows}
    sys.stdout.write(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
