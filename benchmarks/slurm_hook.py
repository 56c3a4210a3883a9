"""What the allocation hook costs jobs that need no move, with the controller alive and dead.

    sudo python -m benchmarks.slurm_hook [--rounds 15]

Brings the paper's rack up under Slurm and measures ``srun -N2 true`` on two nodes under one
aggregator, in turns: ``none`` with a hook that is ``exit 0``, ``hook`` with lightloom's, ``dead``
with lightloom's and a controller that was killed. Prints one JSON document with seconds per arm
and the controller's part. Slurm looks at a hook once a second (docs/slurm.md): what takes less
than its first look costs nothing, what takes longer costs a second.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from benchmarks.slurm_start import RUN_DIR, slurm, slurm_rack
from measure.statistics import summarise
from testbed.rack.slurm import programs

ARMS = ("none", "hook", "dead")
NEAR = "gpu0,gpu1"

Document = dict[str, Any]


def hook_file() -> Path:
    """Return the script that slurmctld runs at an allocation."""
    return programs.folder_of(RUN_DIR) / "etc" / Path(programs.HOOK).name


def timed() -> float:
    """Return the seconds that an interactive job of two nodes takes."""
    began = time.monotonic()
    slurm("srun", "-N2", "--gres=gpu:1", "-w", NEAR, "true")
    return time.monotonic() - began


def main() -> None:
    """Run all rounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    samples: dict[str, list[float]] = {arm: [] for arm in ARMS}
    answers: list[Document] = []
    with slurm_rack() as mortal:
        real = hook_file().read_text(encoding="utf-8")
        timed()
        for number in range(options.rounds):
            for arm in ARMS[number % len(ARMS) :] + ARMS[: number % len(ARMS)]:
                hook_file().write_text("#!/bin/sh\nexit 0\n" if arm == "none" else real)
                if arm == "dead":
                    mortal.kill()
                samples[arm].append(timed())
                if arm == "hook":
                    answers.append(mortal.get("/engine")["allocations"][0])
                if arm == "dead":
                    mortal.start()
                    timed()  # its first answer loads what all others have
    arms: Document = {}
    for arm, values in samples.items():
        found = summarise(values)
        arms[arm] = {} if found is None else found.document()
    own = summarise([a["engine_s"] + a["plan_s"] + a["light_s"] for a in answers])
    document = {
        "machine": {"cores": os.cpu_count(), "kernel": platform.release()},
        "emulated": ["GPUs", "ocs0", "as0", "as1"],
        "arms": arms,
        "controllers_part_s": {} if own is None else own.document(),
        "samples": samples,
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
