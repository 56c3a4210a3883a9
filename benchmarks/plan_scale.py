"""Measures quality and speed of regroup plans as sites grow, with rivals in the same run. JSON.

    .venv/bin/python benchmarks/plan_scale.py --endpoints 64,256,1024 --out plan-scale.json
    .venv/bin/python benchmarks/plan_scale.py --out plan-scale.json --plot plan-scale.png

``plan_states.scattered`` generates the states: sizes from public workloads, half of the jobs at
random. Every combination has its own time limit (``LIMITS_S``, the goals of the project). With
``--out`` results are added to the file and combinations in it are not repeated, so a long grid
can run in parts; the JSON on stdout has all of them and a summary. A gap is the distance from a
proven lower bound, so the plan itself is at least as good as the gap.

The limits assume a dedicated core. On a machine with other load ``--shared`` interprets each
limit as CPU seconds: it extends the wall-clock limit by the measured slowdown of a short spin.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from plan_rivals import greedy_alone, milp, restart
from plan_states import scattered

from scheduler.model import Fabric, Limits, Objective, Plan
from scheduler.regroup.counting import count
from scheduler.regroup.plan import plan

LIMITS_S = {64: 1.0, 256: 1.0, 1024: 1.0, 4096: 2.0, 16384: 10.0, 100_000: 60.0}
GOALS_PERCENT = {64: 0.0, 256: 0.0, 1024: 0.0, 4096: 0.5, 16384: 2.0, 100_000: 3.0}

_SPIN_S = 0.15

Row = dict[str, Any]


def limit_of(endpoints: int) -> float:
    """Return the time limit for a size, which is that of the next larger goal."""
    return next((s for n, s in LIMITS_S.items() if endpoints <= n), max(LIMITS_S.values()))


def stretch() -> float:
    """Return the ratio of wall time to CPU time for a spin of 0.15 s."""
    wall, cpu = time.perf_counter(), time.process_time()
    while time.process_time() - cpu < _SPIN_S:
        pass
    return max((time.perf_counter() - wall) / _SPIN_S, 1.0)


def measure(fabric: Fabric, objective: Objective, limit_s: float) -> Row:
    """Plan once, and run the rivals on the same problem."""
    limits = Limits(objective=objective, time_limit_s=limit_s)
    started, cpu = time.perf_counter(), time.process_time()
    made = plan(fabric, limits, clock=time.perf_counter)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    problem = count(fabric, limits).problem
    rivals = {"greedy": greedy_alone(problem).document()}
    if problem.switches == 1:
        rivals["restart"] = restart(problem).document()
    textbook = milp(problem, limit_s)
    if textbook is not None:
        rivals["milp"] = textbook.document()
    return {
        "jobs": len(fabric.jobs),
        "seconds": round(seconds, 4),
        "cpu_seconds": round(cpu, 4),
        "excess_span_before": made.excess_span_before,
        "excess_span": made.excess_span_after,
        "paused_gpus": made.paused_gpus,
        "running_moves": made.running_moves,
        "bound": {
            "excess_span": made.bound.excess_span,
            "paused_gpus": made.bound.paused_gpus,
            "running_moves": made.bound.running_moves,
        },
        "optimal": made.optimal,
        "gap_percent": gaps(made),
        "rivals": rivals,
    }


def gaps(made: Plan) -> dict[str, float]:
    """Return how far each criterion is from its bound, in percent."""

    def gap(value: float, bound: float) -> float:
        return round(100 * (value - bound) / max(bound, 1.0), 3)

    return {
        "excess_span": gap(made.excess_span_after, made.bound.excess_span),
        "paused_gpus": gap(made.paused_gpus, made.bound.paused_gpus),
        "running_moves": gap(made.running_moves, made.bound.running_moves),
    }


def first_criterion(row: Row) -> str:
    """Return the criterion that the plan minimises first after the excess span."""
    return "paused_gpus" if row["objective"] == "pauses" else "running_moves"


def summary(rows: list[Row]) -> list[Row]:
    """Return one row per number of endpoints, objective and job sizes."""
    lines = []
    keys = sorted({(r["endpoints"], r["objective"], r["sizes"]) for r in rows})
    for endpoints, objective, sizes in keys:
        mine = [
            r
            for r in rows
            if (r["endpoints"], r["objective"], r["sizes"]) == (endpoints, objective, sizes)
        ]
        first = first_criterion(mine[0])
        second = "running_moves" if first == "paused_gpus" else "paused_gpus"
        goal = next((g for n, g in GOALS_PERCENT.items() if endpoints <= n), 3.0)
        lines.append(
            {
                "endpoints": endpoints,
                "objective": objective,
                "sizes": sizes,
                "states": len(mine),
                "excess_span_left": sum(r["excess_span"] for r in mine),
                "proven_optimal": sum(r["optimal"] for r in mine),
                "first_criterion_within_goal": sum(r["gap_percent"][first] <= goal for r in mine),
                "median_gap_percent": median(r["gap_percent"][first] for r in mine),
                "worst_gap_percent": max(r["gap_percent"][first] for r in mine),
                "second_median_gap_percent": median(r["gap_percent"][second] for r in mine),
                "second_worst_gap_percent": max(r["gap_percent"][second] for r in mine),
                "median_cpu_seconds": round(median(r["cpu_seconds"] for r in mine), 3),
                "median_seconds": round(median(r["seconds"] for r in mine), 3),
                "worst_seconds": round(max(r["seconds"] for r in mine), 3),
                "greedy_worse_by_percent": round(
                    median(
                        100 * (r["rivals"]["greedy"][first] / r[first] - 1) if r[first] else 0.0
                        for r in mine
                    ),
                    2,
                ),
                "restart_excess_span_left": sum(
                    r["rivals"]["restart"]["excess_span"] for r in mine if "restart" in r["rivals"]
                ),
                "milp_proven": sum(r["rivals"].get("milp", {}).get("optimal", 0) for r in mine),
            }
        )
    return lines


def plot(rows: list[Row], file: Path) -> None:
    """Draw seconds against endpoints and jobs, and the gap against endpoints."""
    import matplotlib as mpl  # noqa: PLC0415 - only for the plot

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    styles = {"philly": "o", "odd": "s", "kalos": "^"}
    for (sizes, marker), colour in zip(styles.items(), ("C0", "C1", "C2"), strict=True):
        mine = [r for r in rows if r["sizes"] == sizes]
        style: dict[str, Any] = {"s": 16, "alpha": 0.6, "color": colour, "marker": marker}
        for axis, key in ((left, "endpoints"), (middle, "jobs")):
            seconds = [r["cpu_seconds"] for r in mine]
            axis.scatter([r[key] for r in mine], seconds, label=sizes, **style)
        worst = [max(r["gap_percent"][first_criterion(r)], 1e-2) for r in mine]
        right.scatter([r["endpoints"] for r in mine], worst, label=sizes, **style)
    limits = sorted({(r["endpoints"], r["limit_s"]) for r in rows})
    left.plot([n for n, _ in limits], [s for _, s in limits], "k--", lw=1, label="time limit")
    for axis, name in ((left, "endpoints"), (middle, "jobs"), (right, "endpoints")):
        axis.set(xscale="log", yscale="log", xlabel=name, ylabel="CPU seconds to plan")
        axis.grid(visible=True, alpha=0.3)
    right.set(ylabel="% above the proven bound (0.01: optimal)")
    left.legend()
    figure.savefig(file, dpi=110)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (
        ("endpoints", "64,256,1024,4096"),
        ("ports", "8,16,32,64"),
        ("loads", "0.8,0.95,1.0"),
        ("sizes", "philly,odd,kalos"),
        ("objectives", "pauses,moves"),
        ("seeds", "1"),
        ("switches", "1"),
    ):
        parser.add_argument(f"--{name}", default=default)
    parser.add_argument("--time-limit", type=float, help="seconds, instead of the goal's")
    parser.add_argument("--shared", action="store_true", help="limits in seconds of CPU")
    parser.add_argument("--out", type=Path, help="file with results so far; new results are added")
    parser.add_argument("--plot", type=Path)
    return parser.parse_args()


def main() -> int:
    """Run every combination that the file does not have yet."""
    given = arguments()
    rows: list[Row] = []
    if given.out is not None and given.out.exists():
        rows = json.loads(given.out.read_text(encoding="utf-8"))
    names = ("endpoints", "ports", "load", "sizes", "objective", "seed", "switches")
    known = {tuple(r[n] for n in names) for r in rows}
    for combination in product(
        map(int, given.endpoints.split(",")),
        map(int, given.ports.split(",")),
        map(float, given.loads.split(",")),
        given.sizes.split(","),
        given.objectives.split(","),
        map(int, given.seeds.split(",")),
        map(int, given.switches.split(",")),
    ):
        endpoints, ports, load, sizes, objective, seed, switches = combination
        if combination in known or endpoints < ports or ports < switches:
            continue
        aggregators = round(endpoints / ports)
        fabric = scattered(aggregators, ports, load, sizes, seed, switches=switches)
        limit_s = given.time_limit or limit_of(endpoints)
        row = dict(zip(names, combination, strict=True))
        on_the_wall = limit_s * stretch() if given.shared else limit_s
        row |= measure(fabric, Objective(objective), on_the_wall)
        row |= {"limit_s": limit_s, "limit_on_the_wall_s": round(on_the_wall, 3)}
        rows.append(row)
        sys.stderr.write(
            f"{combination}: {row['seconds']:.2f} s, gaps {row['gap_percent']},"
            f" optimal {row['optimal']}\n"
        )
        if given.out is not None:
            given.out.write_text(json.dumps(rows), encoding="utf-8")
    if given.plot is not None:
        plot(rows, given.plot)
    cores = os.cpu_count()
    sys.stdout.write(
        json.dumps({"cores": cores, "summary": summary(rows), "rows": rows}, indent=1) + "\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
