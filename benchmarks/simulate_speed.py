"""Measures the speed of a replay as endpoints and jobs grow, on a synthetic workload. JSON.

    .venv/bin/python benchmarks/simulate_speed.py --endpoints 256,1024,4096 --jobs 20000

Sizes follow Philly's (95 % single-GPU jobs), durations are log-normal, the offered load is 0.9; the
step-time model slows scattered jobs down.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import numpy as np
from simulate_policies import uniform

from scheduler.sim.engine import replay
from scheduler.sim.policies import make_policy
from scheduler.sim.slowdown import ModelSlowdown
from scheduler.sim.trace import Trace, TraceJob

SIZES = (1, 2, 4, 8, 16, 32)
SHARES = (0.953, 0.0157, 0.0167, 0.013, 0.0012, 0.0004)


def workload(jobs: int, endpoints: int, seed: int) -> Trace:
    """Return a random trace of Philly's sizes at an offered load of 0.9."""
    random = np.random.default_rng(seed)
    sizes = random.choice(SIZES, jobs, p=SHARES)
    runs = random.lognormal(7.0, 2.0, jobs)
    arrivals = np.cumsum(random.exponential(1.0, jobs))
    listed = [
        TraceJob(f"j{i}", float(at), int(n), float(run), line=i + 1)
        for i, (at, n, run) in enumerate(zip(arrivals, sizes, runs, strict=True))
    ]
    return Trace.of("synthetic", listed).at_load(0.9, endpoints)


def main() -> int:
    """Run every combination of endpoints, jobs and policies."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoints", default="256,1024,4096")
    parser.add_argument("--jobs", default="20000")
    parser.add_argument("--ports", type=int, default=16)
    parser.add_argument("--policies", default="fifo-bestfit,regroup")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="clock of replay_s and jobs_per_s; cpu on a machine with other load",
    )
    given = parser.parse_args()
    clock = time.perf_counter if given.clock == "wall" else time.process_time
    rows = []
    for endpoints in (int(text) for text in given.endpoints.split(",")):
        site = uniform(endpoints, given.ports, 1)
        for jobs in (int(text) for text in given.jobs.split(",")):
            trace = workload(jobs, endpoints, given.seed)
            for name in given.policies.split(","):
                cost = ModelSlowdown.of(site, SIZES)
                made = make_policy(name, trace)
                found = replay(trace, site, made, cost, clock=clock).report
                rows.append({"clock": given.clock, **found.document()})
                sys.stderr.write(
                    f"{name}: {endpoints} endpoints, {jobs} jobs: {found.replay_s:.2f} s,"
                    f" {found.jobs_per_s:.0f} jobs/s\n"
                )
    sys.stdout.write(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
