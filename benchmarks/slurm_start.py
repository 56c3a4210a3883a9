"""From submit to start under Slurm, of a job whose idle GPUs are under two aggregators.

    sudo python -m benchmarks.slurm_start [--rounds 10] [--wait 60]

Brings the paper's rack up under Slurm. Four GPUs are held by jobs that run, so that one is idle
under each aggregator; a job wants both. Arms, in turns, each round in another order:

* ``switches``: Slurm alone, ``--switches=1@WAIT``: it starts scattered when it has waited for so
  long (Slurm's default is 300 s), or never if nothing ends; measured in the first rounds only;
* ``scattered``: Slurm alone, which starts it at once under two aggregators;
* ``hook``: lightloom moves the light between allocation and start;
* ``publish``: ``--switches=1@5:00``; lightloom moves idle light and publishes the topology.

"Slurm alone" has the same hook and a controller that is dead. Prints one JSON document: seconds
from ``sbatch`` to the first command of the job, its aggregators, and lightloom's parts of it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from controller.devices.slurm.topology import shown_in
from measure.statistics import summarise
from sitefile import load_site
from testbed import rack
from testbed.demo import PAPER_SITE
from testbed.mortal import Mortal, taken_over
from testbed.rack.slurm import engines, programs
from testbed.rack.slurm.config import UnderSlurm

RUN_DIR = Path("/run/lightloom/bench-slurm")
BUSY = ("gpu0", "gpu1", "gpu2", "gpu3")
"""gpu4 is left under as0, gpu5 under as1."""
LIMIT_S = 120.0
POLL_S = 0.05
ALONE = ("switches", "scattered")
ARMS = (*ALONE, "hook", "publish")
FEW = 2
"""Rounds of the arm that only waits."""

Document = dict[str, Any]


@contextmanager
def slurm_rack() -> Iterator[Mortal]:
    """Bring the rack up under Slurm, with a controller that can be killed."""
    try:
        status = rack.up(PAPER_SITE, RUN_DIR, progress=lambda _: None, slurm=UnderSlurm())
        with taken_over(status, RUN_DIR) as mortal:
            yield mortal
    finally:
        rack.down(RUN_DIR, progress=lambda _: None)


def slurm(*argv: str) -> str:
    """Run one of Slurm's programs; its failure ends the benchmark."""
    done = engines.run(RUN_DIR, argv)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout.strip()


def submitted(*options: str, script: str) -> str:
    """Submit a batch job; return its number."""
    output = ("--parsable", "--output=/tmp/%j.out", "--gres=gpu:1")
    return slurm("sbatch", *output, *options, "--wrap", script).partition(";")[0]


def until(
    condition: Callable[[], object],
    limit_s: float = LIMIT_S,
    details: Callable[[], str] = lambda: "",
) -> None:
    """Wait for a condition; a wait that takes too long ends the benchmark."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {limit_s:g} s for {condition}: {details()}")
        time.sleep(POLL_S)


def started(number: str, limit_s: float = LIMIT_S) -> float:
    """Wait until the job's first command has run; return when, in seconds since 1970."""
    path = programs.folder_of(RUN_DIR) / "tmp" / f"{number}.out"

    def said() -> str:
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def details() -> str:
        return f"it said {said()!r}; {slurm('scontrol', 'show', 'job', number)}"

    until(lambda: said().endswith("\n"), limit_s, details)
    return float(said().splitlines()[0])


def homes(mortal: Mortal) -> dict[str, str]:
    """Return where the light of every endpoint is."""
    return {e["name"]: e["home"] for e in mortal.get("/endpoints")["items"]}


def restore(mortal: Mortal) -> None:
    """Move all light back to the site file's homes, and wait until Slurm has the topology."""
    wanted = dict(load_site(PAPER_SITE).homes)
    until(lambda: mortal.get("/engine").get("jobs") == len(BUSY))
    for endpoint, home in wanted.items():
        if homes(mortal)[endpoint] != home:
            mortal.post(f"/endpoints/{endpoint}/attachment", {"aggregator": home}, wait_s=30)
    until(lambda: homes(mortal) == wanted)
    until(lambda: shown_in(slurm("scontrol", "show", "topology")).leaf == wanted)


def patience(seconds: float) -> str:
    """Return a time as Slurm reads it: minutes and seconds (a number alone is minutes)."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def one(mortal: Mortal, arm: str, wait_s: float) -> Document:
    """Submit one job that is blocked by locality; return its figures."""
    if arm in ALONE:
        mortal.kill()
    options = ["-N2"]
    if arm in ("switches", "publish"):
        options.append(f"--switches=1@{patience(wait_s if arm == 'switches' else 300.0)}")
    began = time.time()
    number = submitted(*options, script="date +%s.%N; sleep 600")
    figures: Document = {"arm": arm, "start_s": started(number, LIMIT_S + wait_s) - began}
    if arm in ALONE:
        mortal.start()
    job = f"slurm-{number}"
    until(lambda: mortal.get(f"/jobs/{job}").get("state") == "running")
    figures["aggregators"] = mortal.get(f"/jobs/{job}")["span"]
    status = mortal.get("/engine")
    parts = [a for a in (*status["allocations"], *status["helped"]) if a["job"] == job]
    for name in ("engine_s", "plan_s", "light_s", "publish_s"):
        found = [part[name] for part in parts if name in part]
        if found and arm not in ALONE:
            figures[name] = sum(found)
    slurm("scancel", number)
    until(lambda: number not in slurm("squeue", "-h", "-o", "%i").split())
    restore(mortal)
    return figures


def summary(samples: list[Document]) -> Document:
    """Return medians with intervals."""
    shown: Document = {"n": len(samples), "aggregators": [s["aggregators"] for s in samples]}
    for name in ("start_s", "engine_s", "plan_s", "light_s", "publish_s"):
        found = summarise([sample[name] for sample in samples if name in sample])
        if found is not None:
            shown[name] = found.document()
    return shown


def main() -> None:
    """Run all rounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--wait", type=float, default=60.0, help="of the arm switches, seconds")
    options = parser.parse_args()
    samples: list[Document] = []
    with slurm_rack() as mortal:
        for endpoint in BUSY:
            submitted("-N1", "-w", endpoint, script="sleep 100000")
        until(lambda: mortal.get("/engine").get("jobs") == len(BUSY))
        restore(mortal)
        for number in range(options.rounds):
            arms = [arm for arm in ARMS if arm != "switches" or number < FEW]
            at = number % len(arms)
            samples += [one(mortal, arm, options.wait) for arm in (*arms[at:], *arms[:at])]
    document = {
        "machine": {"cores": os.cpu_count(), "kernel": platform.release()},
        "emulated": ["GPUs", "ocs0", "as0", "as1"],
        "real": ["slurmctld, slurmd and slurmrestd 24.11", "Open vSwitch"],
        "switches_wait_s": options.wait,
        "arms": {a: summary([s for s in samples if s["arm"] == a]) for a in ARMS},
        "samples": samples,
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
