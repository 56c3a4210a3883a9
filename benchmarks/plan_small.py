"""Measures how long plans of small sites take: 4 to 15 endpoints, 1 to 4 optical switches.

    PYTHONPATH=. .venv/bin/python benchmarks/plan_small.py --seeds 1000

Seconds are those of the processor. ``plan_states.small`` generates the states. JSON on stdout; the
goal is a proven optimum in at most 0.2 s of processor for each.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time

from plan_states import small

from scheduler.model import Limits, Objective
from scheduler.regroup.plan import plan_regroup

GOAL_S = 0.2


def main() -> int:
    """Plan every seed for both objectives; 1 if the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    given = parser.parse_args()
    took: list[tuple[float, int]] = []
    unproven: list[int] = []
    for seed in range(given.seeds):
        fabric = small(seed)
        for objective in Objective:
            began = time.process_time()
            plan = plan_regroup(fabric, Limits(objective=objective), clock=time.monotonic)
            took.append((time.process_time() - began, seed))
            if not plan.optimal:
                unproven.append(seed)
    worst, seed = max(took)
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {sys.version.split()[0]}",
        "plans": len(took),
        "median_s": round(statistics.median(s for s, _ in took), 4),
        "worst_s": round(worst, 4),
        "worst_seed": seed,
        "unproven": unproven,
        "goal_s": GOAL_S,
    }
    print(json.dumps(result, indent=1))
    return int(worst > GOAL_S or bool(unproven))


if __name__ == "__main__":
    sys.exit(main())
