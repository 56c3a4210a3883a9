"""What checkpoints cost a training: none, lightloom's with and without copies, and a naive rival.

    sudo python -m benchmarks.checkpoint_overhead [--blocks 3] [--steps 60]

Brings the rack of testbed/sites/spare.yaml up and trains the same job of TensorFlow (4 ranks) in
five modes, one after the other, in an order that turns by one with every block:

* ``none``: no checkpoints;
* ``single``: every rank writes to its server's memory, nothing is copied;
* ``partner``: the same, with copies of every rank's part on another server;
* ``identical``: the same for a job that says ``replicas: identical``: no bytes move, as ranks on
  another server hold the whole state;
* ``naive``: rank 0 writes to a shared store of 20 MB/s, all ranks wait.

Prints one JSON document. ``overhead`` is (time - time of ``none``) / time of ``none`` of the same
block and steps, ``copier`` is the median usual step of a mode with copies over that of ``single``
minus 1 (a usual step has no checkpoint in it), ``blocked_s`` what a checkpoint holds training up.
Medians with 95 % intervals over blocks; all losses must be equal bit by bit. A block takes 5
minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from typing import Any

from benchmarks.spare_swap import ENDED, controlled_rack
from measure.statistics import summarise
from testbed.demo.spare.arms import LOCAL_BYTES, SpareArm, SparePlan, request
from testbed.demo.spare.trace import figures, read
from testbed.kept_ring import Document
from testbed.mortal import Mortal
from testbed.rack import record

MODES = ("none", "single", "identical", "partner", "naive")
COPIED = ("identical", "partner")
UNUSUAL_STEPS = 5
"""First steps, in which the CPU share takes effect."""


def body(mode: str, plan: SparePlan, name: str, image: str) -> Document:
    """Return the submission of a mode's job, always on the same endpoints."""
    arm = {"none": SpareArm.UNDISTURBED, "naive": SpareArm.SHARED}.get(mode, SpareArm.SPARE)
    made = request(arm, plan, name=name, image=image)
    made["endpoints"] = [f"gpu{n}" for n in range(plan.ranks)]
    made.pop("spares", None)
    if "checkpoint" in made:
        made["checkpoint"]["local"]["size_bytes"] = LOCAL_BYTES
        scheme = "partner" if mode in COPIED else mode
        made["checkpoint"]["copies"] = {"scheme": scheme, "apart": "server"}
        made["checkpoint"]["replicas"] = "identical" if mode == "identical" else "distinct"
    return made


def trained(mortal: Mortal, mode: str, plan: SparePlan, name: str, image: str) -> Document:
    """Train one job to its end; return its figures."""
    mortal.post("/jobs", body(mode, plan, name, image))
    mortal.until(lambda: mortal.get(f"/jobs/{name}")["state"] in ENDED, 900.0)
    lines = [line["text"] for line in mortal.log_lines(name) if line["rank"] == 0]
    runs = read(lines)
    found = figures(name, runs, None)
    writes = set(range(plan.every, plan.steps + 1, plan.every))
    steps = [s for n, _, s in runs[-1].steps[UNUSUAL_STEPS:] if n not in writes]
    return {**found, "usual_step_s": statistics.median(steps)}


def shown(values: list[float]) -> Any:
    """Return a median with its interval."""
    found = summarise(values) if values else None
    return None if found is None else found.document()


def main() -> None:
    """Run all blocks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    options = parser.parse_args()
    plan = SparePlan(steps=options.steps, every=options.every)
    blocks: list[dict[str, Document]] = []
    with controlled_rack() as (mortal, run_dir):
        written = record.load(run_dir)
        assert written is not None
        for number in range(options.blocks):
            turned = MODES[number % len(MODES) :] + MODES[: number % len(MODES)]
            blocks.append(
                {m: trained(mortal, m, plan, f"{m}-{number}", written.image) for m in turned}
            )
    losses = {one["final_loss"] for block in blocks for one in block.values()}
    if len(losses) != 1:
        raise SystemExit(f"the modes trained differently: {sorted(losses)}")
    none = [block["none"]["completion_s"] for block in blocks]
    document = {
        "machine": {"cores": os.cpu_count(), "kernel": platform.release()},
        "plan": {"steps": plan.steps, "every": plan.every, "ranks": plan.ranks},
        "overhead": {
            mode: shown(
                [b[mode]["completion_s"] / n - 1 for b, n in zip(blocks, none, strict=True)]
            )
            for mode in MODES[1:]
        },
        "blocked_s": {
            mode: shown([b[mode]["blocked_s_median"] for b in blocks]) for mode in MODES[1:]
        },
        "copier": {
            mode: shown([b[mode]["usual_step_s"] / b["single"]["usual_step_s"] - 1 for b in blocks])
            for mode in COPIED
        },
        "blocks": blocks,
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
