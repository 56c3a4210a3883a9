"""Counts the batches of a plan under a bound on concurrently dark endpoints. JSON on stdout.

.venv/bin/python benchmarks/plan_batches.py --endpoints 1024 --ports 16 --max-dark 4,16,64,256
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from itertools import product
from typing import Any

from plan_states import scattered

from scheduler.model import Limits
from scheduler.regroup.batches import BatchError, cut_into_batches
from scheduler.regroup.plan import plan_regroup

WAYS = ((1, False), (1, True), (2, True), (8, True), (100, True))
"""Pauses that a job gets at most, and whether idle endpoints may be parked."""


def main() -> int:
    """Order one plan with several bounds, and with several ways to cut knots."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoints", type=int, default=1024)
    parser.add_argument("--ports", type=int, default=16)
    parser.add_argument("--loads", default="0.8,0.95,1.0")
    parser.add_argument("--sizes", default="philly")
    parser.add_argument("--max-dark", default="4,16,64,256")
    parser.add_argument("--time-limit", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for load in map(float, given.loads.split(",")):
        aggregators = round(given.endpoints / given.ports)
        fabric = scattered(aggregators, given.ports, load, given.sizes, given.seed)
        limits = Limits(time_limit_s=given.time_limit)
        made = plan_regroup(fabric, limits, clock=time.perf_counter)
        bounds = map(int, given.max_dark.split(","))
        for max_dark, (max_pauses, park) in product(bounds, WAYS):
            row = {
                "endpoints": given.endpoints,
                "load": load,
                "running_moves": made.running_moves,
                "max_dark": max_dark,
                "max_pauses": max_pauses,
                "park": park,
            }
            started = time.perf_counter()
            try:
                found = cut_into_batches(
                    fabric, made.moves, max_dark, max_pauses=max_pauses, park=park
                )
                row |= {"batches": len(found.batches), "least": found.least}
                row |= {"pauses_by_jobs": dict(sorted(Counter(found.pauses.values()).items()))}
            except BatchError as error:
                row |= {"batches": None, "needed": error.needed}
            rows.append(row | {"seconds": round(time.perf_counter() - started, 4)})
    sys.stdout.write(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
