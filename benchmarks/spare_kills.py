"""Random kills of ranks, GPUs, agents and the controller: nothing torn, nothing held twice.

    sudo python -m benchmarks.spare_kills [--kills 200] [--minutes 30] [--seed 1]

Brings the rack of testbed/sites/spare.yaml up and runs rings that write checkpoints all the time
(``testbed.ring_checkpoint``). At random moments (while steps are written, copied, flushed,
restored, and while a swap runs) it kills a rank, loses a GPU, kills an agent or the controller, and
repairs what it lost a random time later, so that a loss often meets another one's recovery.
Prints one JSON document and exits with 1 when an invariant did not hold:

* no restore of a torn file, of another rank's part or of unequal steps (the ring notices all);
* no endpoint held by two jobs, none held after its job has ended;
* a run goes on from a step at least as new as the newest complete one seen before the kill, as
  long as what was lost is one endpoint or processes only;
* every ring ends, with the state of an undisturbed run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import docker

import testbed
from agentlink.ranks import LABEL
from benchmarks.spare_swap import ENDED, controlled_rack, repair_all
from testbed import processes, rack
from testbed.kept_ring import Document, RingSize, Said, complete_steps, printed
from testbed.mortal import Mortal
from testbed.rack import procfs, record
from testbed.rack.process import kill_all

RING = RingSize(steps=150, step_s=0.05, size=2_000_000)
KINDS = ("rank", "gpu", "agent", "controller")
MOST_PAUSE_S = 3.0
END_S = 300.0
READ_S = 30.0


@dataclass
class Chaos:
    """The rack, what is dead on it, and what was found."""

    mortal: Mortal
    run_dir: Path
    chance: random.Random
    kills: Counter[str] = field(default_factory=Counter)
    moments: Counter[str] = field(default_factory=Counter)
    """What the job was doing when something was killed."""
    broken: list[str] = field(default_factory=list)
    faults: set[str] = field(default_factory=set)
    """What ranks of any run said that must never happen."""
    agents: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def ring(self, name: str, until: float, left: int) -> int:
        """Run one ring to its end among kills; return how many there were."""
        self.mortal.post("/jobs", request(name))
        done = 0
        while done < left and time.monotonic() < until:
            job = self.mortal.get(f"/jobs/{name}")
            if job["state"] in ENDED:
                break
            time.sleep(self.chance.uniform(0.0, MOST_PAUSE_S))
            done += self.kill(name)
            self.check_holders()
        repair_all(self.mortal, self.run_dir)
        self.mortal.until(lambda: self.mortal.get(f"/jobs/{name}")["state"] in ENDED, END_S)
        job, told = self.mortal.get(f"/jobs/{name}"), self.told(name)
        if job["state"] != "completed" or not told.as_undisturbed(RING):
            last = {rank: told.ranks.get(rank, [{}])[-1] for rank in range(RING.ranks)}
            self.broken.append(f"{name} is {job['state']}: {job['reason']}; last lines: {last}")
        if held := [e["name"] for e in self.mortal.get("/endpoints")["items"] if e["job"] == name]:
            self.broken.append(f"{name} has ended and holds {held}")
        return done

    def kill(self, name: str) -> int:
        """Kill something; return 1, 0 when there was nothing of that kind."""
        kind = self.chance.choice(KINDS)
        before = complete_steps(self.mortal, name)[:1]
        job = self.mortal.get(f"/jobs/{name}")
        endpoints = job.get("endpoints") or []
        victim = self.chance.choice(endpoints) if endpoints else ""
        processes_of = users(self.run_dir, victim) if kind == "rank" and victim else []
        if (kind in {"rank", "gpu"} and not victim) or (kind == "rank" and not processes_of):
            return 0
        self.moments[f"{kind} while {job['state']}"] += 1
        if kind == "rank":
            kill_all(processes_of)
        elif kind == "gpu":
            if len(rack.status(self.run_dir).lost) >= 2:
                repair_all(self.mortal, self.run_dir)
            rack.lose(victim, self.run_dir)
        elif kind == "agent":
            self.kill_agent(f"srv{self.chance.randrange(4)}")
        else:
            self.mortal.kill()
            time.sleep(self.chance.uniform(0.0, 1.0))
            self.mortal.start()
        self.kills[kind] += 1
        if kind in {"rank", "gpu"}:
            self.mortal.until(lambda: self.went_on(name, job, victim), END_S)
            # A job that came to its end first has no run after this kill.
            anew = self.mortal.get(f"/jobs/{name}")["epoch"] != job["epoch"]
            begun = self.said(name).starts if anew else []
            if before and begun and begun[-1] < before[0]:
                why = [
                    f"{event['reason']}: {event['message']}"
                    for event in self.mortal.get(f"/events?object=job/{name}&limit=200")["items"]
                ][-12:]
                self.broken.append(
                    f"{name} went on from {begun[-1]}, {before[0]} was complete, after {kind}"
                    f" {victim}: {why}"
                )
        return 1

    def told(self, name: str) -> Said:
        """Return what an ended job's last run said, once every agent answers again."""
        deadline = time.monotonic() + READ_S
        while True:
            told = self.said(name)
            whole = all(told.events("end", rank) for rank in range(RING.ranks))
            if whole or time.monotonic() > deadline:
                return told
            time.sleep(1.0)

    def said(self, name: str) -> Said:
        """Return what the job's present run says; faults are kept, its next run forgets them."""
        told = printed(self.mortal, name)
        self.faults.update(f"{name}: {fault}" for fault in told.faults)
        return told

    def went_on(self, name: str, before: Document, victim: str) -> bool:
        """Whether the job has ended, or a run without what was killed has begun."""
        job = self.mortal.get(f"/jobs/{name}")
        if job["state"] in ENDED:
            return True
        new = job["epoch"] != before["epoch"] or victim not in job["endpoints"]
        return new and job["state"] == "running" and bool(self.said(name).starts)

    def kill_agent(self, server: str) -> None:
        """Kill an agent and start it again a moment later."""
        name = f"agent-{server}"
        written = record.load(self.run_dir)
        assert written is not None
        process = next(one for one in written.processes if one.name == name)
        running = self.agents.pop(name, None)
        pid = running.pid if running else process.pid
        os.kill(pid, signal.SIGKILL)
        if running:
            running.wait()
        else:
            wait_gone(process.pid, process.ticks)
        time.sleep(self.chance.uniform(0.0, 1.0))
        root = str(Path(testbed.__file__).parents[1])
        environment = {**os.environ, "PYTHONPATH": root, procfs.MARKER: str(self.run_dir)}
        with (self.run_dir / "logs" / f"{name}-again.log").open("ab") as log:
            self.agents[name] = subprocess.Popen(
                process.argv, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def check_holders(self) -> None:
        """Compare what jobs hold: no endpoint twice."""
        held: Counter[str] = Counter()
        for job in self.mortal.get("/jobs")["items"]:
            if job["state"] not in ENDED:
                held.update([*job["endpoints"], *job["spares"]])
        self.broken += [f"{end} is held {count} times" for end, count in held.items() if count > 1]

    def end(self) -> None:
        """End the agents that were started here."""
        for agent in self.agents.values():
            agent.terminate()
            agent.wait(timeout=60)


def request(name: str) -> Document:
    """Return a submission with two spares whose every third complete step goes to a store."""
    made = RING.request(name, spares=2)
    made["checkpoint"]["shared"] = {"store": "results", "every": 3}
    return made


def users(run_dir: Path, endpoint: str) -> list[tuple[int, int]]:
    """Return the processes of the rank on an endpoint."""
    written = record.load(run_dir)
    assert written is not None
    client = docker.DockerClient(written.docker_host, timeout=30)
    try:
        found = client.api.containers(filters={"label": f"{LABEL}endpoint={endpoint}"})
    finally:
        client.close()
    pids = processes.in_cgroups([one["Id"] for one in found])
    return [(pid, ticks) for pid in pids if (ticks := procfs.start_ticks(pid)) is not None]


def wait_gone(pid: int, ticks: int) -> None:
    """Wait until a process that was killed has ended."""
    while procfs.start_ticks(pid) == ticks:
        time.sleep(0.01)


def main() -> None:
    """Kill until there were enough kills, or the time is over."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    until = time.monotonic() + 60 * options.minutes
    chance = random.Random(options.seed)
    done = rings = 0
    with controlled_rack() as (mortal, run_dir):
        chaos = Chaos(mortal, run_dir, chance)
        try:
            while done < options.kills and time.monotonic() < until:
                done += chaos.ring(f"ring-{rings}", until, options.kills - done)
                rings += 1
        finally:
            chaos.end()
    document = {
        "seed": options.seed,
        "kills": dict(chaos.kills),
        "moments": dict(chaos.moments),
        "rings": rings,
        "broken": [*chaos.broken, *sorted(chaos.faults)],
    }
    print(json.dumps(document))
    sys.exit(bool(document["broken"]))


if __name__ == "__main__":
    main()
