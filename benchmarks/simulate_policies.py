"""Replays one public trace under every policy, with varied load, pause and restart. JSON output.

    .venv/bin/python benchmarks/simulate_policies.py --trace philly.csv \
        --gavel-table simulation_throughputs.json --loads 0.7,0.9,0.95 --out policies.json

The site is uniform: ``--endpoints`` under aggregators of ``--ports`` ports, on ``--switches``
optical switches. Every row is one replay of ``lightloom simulate``; docs/simulator.md has the
figures.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from scheduler.model import Aggregator, Endpoint, Site
from scheduler.sim import readers
from scheduler.sim.cluster import ReplaySettings
from scheduler.sim.engine import replay
from scheduler.sim.gavel import GavelTable
from scheduler.sim.policies import POLICIES, make_policy
from scheduler.sim.slowdown import GavelSlowdown, ModelSlowdown, Slowdown
from scheduler.sim.trace import Trace


def uniform(endpoints: int, ports: int, switches: int) -> Site:
    """Return a site of equal aggregators whose ports are all in use."""
    return Site(
        f"uniform-{endpoints}",
        tuple(
            Endpoint(f"e{i}", ocs=f"ocs{i % switches}", server=f"srv{i // 8}")
            for i in range(endpoints)
        ),
        tuple(
            Aggregator(f"as{a}", {f"ocs{k}": ports // switches for k in range(switches)})
            for a in range(endpoints // ports)
        ),
    )


def main() -> int:
    """Run all combinations; progress on stderr."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--gavel-table", type=Path, required=True)
    parser.add_argument("--loads", default="0.9")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--slowdown", choices=("gavel", "model"), default="gavel")
    parser.add_argument("--pauses", default="0.25", help="seconds, comma-separated")
    parser.add_argument("--restart-s", type=float, default=60.0)
    parser.add_argument("--checkpoint-s", type=float, default=600.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--endpoints", type=int, default=512)
    parser.add_argument("--ports", type=int, default=16)
    parser.add_argument("--switches", type=int, default=1)
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="clock of replay_s and jobs_per_s; cpu on a machine with other load",
    )
    given = parser.parse_args()
    clock = time.perf_counter if given.clock == "wall" else time.process_time
    table = GavelTable.parse(given.gavel_table.read_text(), str(given.gavel_table))
    with given.trace.open() as lines:
        whole = readers.read(lines, given.trace.name, table).up_to(given.endpoints)
    if given.jobs:
        whole = whole.first(given.jobs)
    site = uniform(given.endpoints, given.ports, given.switches)

    def cost(trace: Trace, seed: int) -> Slowdown:
        if given.slowdown == "model":
            return ModelSlowdown.of(site, {job.gpus for job in trace.jobs})
        return GavelSlowdown(table, seed)

    rows = []
    for load in (float(text) for text in given.loads.split(",")):
        trace = whole.at_load(load, given.endpoints)
        for pause in (float(text) for text in given.pauses.split(",")):
            settings = ReplaySettings(
                pause_s=pause, restart_s=given.restart_s, checkpoint_s=given.checkpoint_s
            )
            for name in given.policies.split(","):
                for seed in range(given.seeds):
                    found = replay(
                        trace,
                        site,
                        make_policy(name, trace),
                        cost(trace, seed),
                        settings,
                        clock=clock,
                    ).report
                    rows.append(
                        {
                            "load": load,
                            "pause_s": pause,
                            "seed": seed,
                            "clock": given.clock,
                            **found.document(),
                        }
                    )
                    sys.stderr.write(
                        f"load {load} pause {pause} {name} seed {seed}:"
                        f" {found.jct_gpu_time_weighted_s:.0f} s by GPU-time,"
                        f" local {found.locality_time:.4f}, {found.jobs_per_s:.0f} jobs/s\n"
                    )
    text = json.dumps(rows, indent=1)
    if given.out:
        given.out.write_text(text + "\n")
    else:
        sys.stdout.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
