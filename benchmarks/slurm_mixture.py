"""A mixture of trainings under Slurm, without lightloom and with it, over several seeds.

    sudo python -m benchmarks.slurm_mixture [--seeds 3] [--jobs 20] [--out DIR]

Runs ``lightloom demo slurm`` once a seed: the same jobs at the same times in the arms ``blind``,
``tree``, ``switches`` and ``lightloom`` (testbed/demo/slurm/mixture.py). Prints one JSON document
with the figures of every seed, and each arm's makespan and mean completion as ratios to those of
``lightloom`` (above 1: lightloom is faster). Seeds whose figures are in ``--out`` already are taken
from there: a run that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import statistics
import sys
from pathlib import Path
from typing import Any

from testbed.demo import slurm
from testbed.demo.slurm.mixture import MixtureArm, MixturePlan

RUN_DIR = Path("/run/lightloom/bench-slurm")
COMPARED = ("makespan_s", "completion_s_mean")

Document = dict[str, Any]


def ratios(runs: list[Document]) -> Document:
    """Return each rival's figures over lightloom's, a list by seed and their median."""
    shown: Document = {}
    for rival in (arm for arm in MixtureArm if arm.alone):
        for name in COMPARED:
            values = [
                round(run["arms"][rival][name] / run["arms"][MixtureArm.LIGHTLOOM][name], 4)
                for run in runs
            ]
            median = round(statistics.median(values), 4)
            shown.setdefault(rival.value, {})[name] = {"by_seed": values, "median": median}
    return shown


def measured(folder: Path, plan: MixturePlan) -> Document | None:
    """Return the figures that an earlier run of this plan left, None without any."""
    try:
        kept: Document = json.loads((folder / slurm.RESULT_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return kept if kept["plan"] == dataclasses.asdict(plan) else None


def main() -> None:
    """Run all seeds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("out/slurm-mixture"))
    options = parser.parse_args()
    runs = []
    for seed in range(1, options.seeds + 1):
        plan, folder = MixturePlan(jobs=options.jobs, seed=seed), options.out / f"seed-{seed}"
        runs.append(
            measured(folder, plan)
            or slurm.run(
                plan=plan,
                out_dir=folder,
                run_dir=RUN_DIR,
                progress=lambda line: print(line, file=sys.stderr, flush=True),
            )
        )
        print(json.dumps(runs[-1]["arms"]), file=sys.stderr, flush=True)
    document = {
        "machine": {"cores": os.cpu_count(), "kernel": platform.release()},
        "emulated": runs[0]["emulated"],
        "runs": [{"plan": run["plan"], "arms": run["arms"]} for run in runs],
        "ratios": ratios(runs),
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
