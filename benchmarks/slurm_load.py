"""What lightloom's watching costs a Slurm with thousands of jobs.

    sudo python -m benchmarks.slurm_load [--jobs 5000] [--seconds 60]

Brings the paper's rack up under Slurm, submits jobs that are held, and measures for the same time
with a controller that is dead (``alone``) and with one that watches (``lightloom``): CPU seconds
of slurmctld and slurmrestd, how long ``squeue`` takes, and with the controller its own CPU seconds
and its slowest answer. Then one job is submitted beside the others: seconds until lightloom has it
and until it has moved its light. Prints one JSON document.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from benchmarks.slurm_start import RUN_DIR, slurm, slurm_rack, started, submitted
from measure.statistics import summarise
from testbed.mortal import Mortal
from testbed.rack import record
from testbed.rack.slurm import engines

DAEMONS = ("slurmctld", "slurmrestd")
SUBMIT = "for i in $(seq $0); do sbatch -Q --hold -o /dev/null --gres=gpu:1 --wrap true; done"
SUBMIT_S = 1200.0
EVERY_S = 2.0
TICKS = os.sysconf("SC_CLK_TCK")

Document = dict[str, Any]


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def daemons() -> dict[str, int]:
    """Return the pid of each of Slurm's daemons."""
    found = record.load(RUN_DIR)
    if found is None:
        raise SystemExit("the rack is gone")
    return {p.name: p.pid for p in found.processes if p.name in DAEMONS}


def over(seconds: float, mortal: Mortal | None) -> Document:
    """Measure for some seconds; ``mortal`` is the controller that watches meanwhile."""
    pids = daemons()
    before = {name: cpu_s(pid) for name, pid in pids.items()}
    own = 0.0 if mortal is None else cpu_s(mortal.pid)
    queues, answers = [], []
    end = time.monotonic() + seconds
    while (began := time.monotonic()) < end:
        slurm("squeue", "-h", "-t", "RUNNING", "-o", "%i")
        queues.append(time.monotonic() - began)
        if mortal is not None:
            began = time.monotonic()
            mortal.get("/engine")
            answers.append(time.monotonic() - began)
        time.sleep(EVERY_S)
    found = summarise(queues)
    shown: Document = {
        "cpu_s": {name: round(cpu_s(pid) - before[name], 2) for name, pid in pids.items()},
        "squeue_s": {} if found is None else found.document(),
    }
    if mortal is not None:
        shown["controller_cpu_s"] = round(cpu_s(mortal.pid) - own, 2)
        shown["slowest_answer_s"] = round(max(answers), 4)
    return shown


def main() -> None:
    """Run both arms."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    with slurm_rack() as mortal:
        began = time.monotonic()
        done = engines.run(RUN_DIR, ("sh", "-c", SUBMIT, str(options.jobs)), timeout_s=SUBMIT_S)
        if done.returncode:
            raise SystemExit(done.stderr)
        submit_s = time.monotonic() - began
        mortal.kill()
        arms = {"alone": over(options.seconds, None)}
        mortal.start()
        arms["lightloom"] = over(options.seconds, mortal)
        began_at = time.time()
        number = submitted("-N2", "-w", "gpu0,gpu2", script="date +%s.%N; sleep 600")
        started_s = started(number) - began_at
        status = mortal.get("/engine")
        own = next(a for a in status["allocations"] if a["id"] == number)
    document = {
        "machine": {"cores": os.cpu_count(), "kernel": platform.release()},
        "emulated": ["GPUs", "ocs0", "as0", "as1"],
        "jobs": options.jobs,
        "submitted_in_s": round(submit_s, 1),
        "seconds": options.seconds,
        "arms": arms,
        "one_more": {
            "started_s": round(started_s, 3),
            **{name: own[name] for name in ("engine_s", "plan_s", "light_s", "moves")},
        },
        "slowest_poll_s": status["slowest_s"],
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
