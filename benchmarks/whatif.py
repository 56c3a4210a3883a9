"""Measures one what-if answer's prediction on a large site: ``python -m benchmarks.whatif``.

It makes a site of ``--endpoints`` under aggregators of 64, full of jobs of 8 ranks of which a
third is scattered, all of them recorded, and predicts one scattered job in compact homes. The goal
is 50 ms for 1,000 endpoints: nothing on the controller's loop may take longer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from scheduler.steptime.facts import StepFacts
from scheduler.steptime.identify import MeasuredStep, identify, plain
from scheduler.steptime.road import Roads
from scheduler.steptime.sites import SharedLinks

PORTS, RANKS = 64, 8
GOAL_S = 0.05


def world(endpoints: int) -> tuple[dict[str, tuple[str, ...]], dict[str, str | None], SharedLinks]:
    """Return rings, homes and links."""
    aggregators = -(-endpoints // PORTS)
    homes: dict[str, str | None] = {f"g{i}": f"as{i // PORTS}" for i in range(endpoints)}
    rings = {}
    for number in range(endpoints // RANKS):
        members = [f"g{number * RANKS + i}" for i in range(RANKS)]
        if number % 3 == 0 and aggregators > 1:  # half of it goes to the next aggregator
            for name in members[RANKS // 2 :]:
                at = int(str(homes[name])[2:])
                homes[name] = f"as{(at + 1) % aggregators}"
        rings[f"j{number}"] = tuple(members)
    pairs = {frozenset((f"as{a}", f"as{b}")): 4 for a in range(aggregators) for b in range(a)}
    return rings, homes, SharedLinks(100e9, 100e9, pairs)


def main() -> None:
    """Print the time of one prediction as JSON; exit status 1 above the goal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--endpoints", type=int, default=1000)
    parser.add_argument("--repetitions", type=int, default=20)
    given = parser.parse_args()
    rings, homes, links = world(given.endpoints)
    facts = StepFacts(
        ranks=RANKS,
        step_s=0.2,
        comm_s=0.1,
        exposed_s=0.05,
        bytes_per_step=1e8,
        calls_per_step=20,
        source="nccl",
        steps=500,
        spread=0.01,
    )
    profiles = dict.fromkeys(rings, plain(facts, 95e9, 1.0))
    together = homes | dict.fromkeys(rings["j0"], "as0")
    taken = []
    for _ in range(given.repetitions):
        began = time.perf_counter()
        now, then = (Roads(rings, at, links, profiles=profiles) for at in (homes, together))
        here, there = now.to("j0"), then.to("j0")
        if here is None or there is None:
            raise SystemExit("a member is dark")
        known = identify([MeasuredStep(facts, here)], 95e9)
        known.predict(there)
        known.speedup(here, there)
        taken.append(time.perf_counter() - began)
    found = {
        "endpoints": given.endpoints,
        "jobs": len(rings),
        "median_s": round(statistics.median(taken), 5),
        "max_s": round(max(taken), 5),
        "goal_s": GOAL_S,
    }
    print(json.dumps(found))
    if statistics.median(taken) > GOAL_S:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
