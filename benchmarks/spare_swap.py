"""From a lost GPU to the first new step: with a spare, and through the queue, in turns.

    sudo python -m benchmarks.spare_swap [--rounds 10]

Brings the rack of testbed/sites/spare.yaml up. Every round runs two rings of four ranks that write
checkpoints (``testbed.ring_checkpoint``: their program starts in a moment, so the figures are
lightloom's and the engine's): one with a spare, one without, in alternating order. The GPU of the
last rank is lost once a step is complete. Prints one JSON document. Per arm, seconds with medians
and 95 % intervals:

* ``first_step_s``: from the loss to the end of the first new step of rank 0;
* ``started_s``: from the loss to the start of rank 0's program;
* ``controller_*``: what the controller reports of the recovery's phases, and the steps lost.

A ring whose last state is not that of an undisturbed run ends the benchmark with an error.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import testbed
from measure.statistics import summarise
from testbed import rack
from testbed.kept_ring import RingSize, complete_steps, printed
from testbed.mortal import Mortal, taken_over

SITE = Path(testbed.__file__).parent / "sites" / "spare.yaml"
ENDED = frozenset({"completed", "failed", "cancelled"})
RING = RingSize(steps=300)
PHASES = (
    *("detect_s", "decide_s", "stop_s", "light_s", "fetch_s", "start_s", "import_s"),
    *("first_step_s", "total_s", "own_s", "steps_lost"),
)
MEASURED = ("first_step_s", "started_s")
ARMS = ("spare", "queue")

Document = dict[str, Any]


@contextmanager
def controlled_rack(site: Path = SITE) -> Iterator[tuple[Mortal, Path]]:
    """Bring a rack up, with a controller that can be killed."""
    run_dir = Path(f"/run/lightloom/spare-{os.getpid()}")
    try:
        with taken_over(rack.up(site, run_dir, progress=lambda _: None), run_dir) as mortal:
            yield mortal, run_dir
    finally:
        rack.down(run_dir, progress=lambda _: None)


def repair_all(mortal: Mortal, run_dir: Path) -> None:
    """Repair what is lost, and put it back into use."""
    for lost in rack.status(run_dir).lost:
        rack.repair(lost, run_dir)
    released(mortal)


def released(mortal: Mortal) -> bool:
    """Put back into use what is out of it; return whether nothing was."""
    out = mortal.get("/quarantine")["items"]
    for entry in out:
        mortal.post(f"/quarantine/{entry['object']}/release")
    return not out


def one(mortal: Mortal, run_dir: Path, name: str, *, spares: int) -> Document:
    """Lose a GPU of one ring; return its figures."""
    mortal.post("/jobs", RING.request(name, spares=spares))
    mortal.until(lambda: max(complete_steps(mortal, name), default=0) >= 2 * RING.every)
    dead = mortal.get(f"/jobs/{name}")["endpoints"][-1]
    change = rack.lose(dead, run_dir)
    mortal.until(lambda: mortal.get(f"/jobs/{name}")["state"] in ENDED)
    told = printed(mortal, name)
    if told.faults or not told.as_undisturbed(RING):
        raise SystemExit(f"{name}: {told.faults or 'another last state than an undisturbed run'}")
    began = next(e["t"] for e in told.events("begin") if e["t"] > change.at)
    first = next(e["t"] for e in told.events("step") if e["t"] > began)
    recovery = mortal.get(f"/jobs/{name}/recoveries")["recoveries"][-1]
    repair_all(mortal, run_dir)
    mortal.until(lambda: released(mortal) and mortal.whole())
    return {
        "first_step_s": first - change.at,
        "started_s": began - change.at,
        "how": recovery["how"],
        "phases": {phase: recovery[phase] for phase in PHASES if recovery[phase] is not None},
    }


def summary(samples: list[Document]) -> Document:
    """Return medians with intervals."""
    figures = {name: [sample[name] for sample in samples] for name in MEASURED}
    for phase in PHASES:
        told = [s["phases"][phase] for s in samples if phase in s["phases"]]
        figures[f"controller_{phase}"] = told
    shown: Document = {"n": len(samples), "how": sorted({s["how"] for s in samples})}
    for name, values in figures.items():
        found = summarise(values) if values else None
        if found is not None:
            shown[name] = found.document()
    return shown


def main() -> None:
    """Run all rounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    samples: dict[str, list[Document]] = {arm: [] for arm in ARMS}
    with controlled_rack() as (mortal, run_dir):
        for number in range(options.rounds):
            for arm in ARMS if number % 2 else ARMS[::-1]:
                name = f"{arm}-{number}"
                samples[arm].append(one(mortal, run_dir, name, spares=int(arm == "spare")))
    document = {
        "machine": {"cores": os.cpu_count(), "kernel": platform.release()},
        "emulated": ["GPUs", "ocs0", "as0", "as1"],
        "arms": {arm: summary(found) for arm, found in samples.items()},
        "samples": samples,
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
