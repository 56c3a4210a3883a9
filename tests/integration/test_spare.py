"""On the rack: a lost GPU's place is taken by a spare, and the job goes on where it was.

The jobs are rings whose last state depends on every state of every rank before
(``testbed.ring_checkpoint``): a torn, mixed or older restore ends in a fault or another digest.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import testbed
from testbed import rack
from testbed.kept_ring import Ring, complete_steps, said
from testbed.mortal import Mortal
from testbed.rack import record
from tests.integration.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

Document = dict[str, Any]
SITE = Path(testbed.__file__).parent / "sites" / "spare.yaml"
RING = Ring(steps=160, size=2_000_000)
"""It trains for 16 s at least: a loss after its first checkpoints comes well before its end."""
LONG_RING = replace(RING, steps=600)
"""For a loss that comes only after an agent's death was noticed and mended."""
ENDED = frozenset({"completed", "failed", "cancelled"})
START_S, END_S, WHOLE_S = 120.0, 240.0, 120.0
PAUSE_S = 0.2
"""Between two looks: a test that asks all the time slows the rack on two cores."""


@pytest.fixture(scope="module")
def run_dir() -> Iterator[Path]:
    path = Path(f"/run/lightloom/test-spare-{os.getpid()}")
    rack.up(SITE, path, progress=lambda line: None)
    try:
        yield path
    finally:
        rack.down(path, progress=lambda line: None)
    assert rack.status(path).state == "down"


@pytest.fixture(scope="module")
def mortal(run_dir: Path) -> Iterator[Mortal]:
    """The rack's controller, which can be killed at any point of a swap."""
    made = Mortal(rack.status(run_dir), run_dir)
    made.start()
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(autouse=True)
def whole(mortal: Mortal, run_dir: Path) -> Iterator[None]:
    """After every test: no job, nothing lost, everything connected."""
    yield
    for job in mortal.get("/jobs")["items"]:
        if job["state"] not in ENDED:
            with suppress(rack.RackError):
                mortal.post(f"/jobs/{job['name']}/cancel")
    for lost in rack.status(run_dir).lost:
        rack.repair(lost, run_dir)
    mortal.until(mortal.whole, WHOLE_S)
    for drain in mortal.get("/drains")["items"]:
        kind, _, name = drain["object"].partition("/")
        mortal.http.delete(f"/{kind}s/{name}/drain").raise_for_status()
    mortal.until(lambda: released(mortal), WHOLE_S)
    mortal.until(lambda: not mortal.get("/containers")["items"], WHOLE_S)


def released(mortal: Mortal) -> bool:
    """Put back into use what is out of it; return whether every endpoint can be used."""
    for entry in mortal.get("/quarantine")["items"]:
        mortal.post(f"/quarantine/{entry['object']}/release")
    states = {end["state"] for end in mortal.get("/endpoints")["items"]}
    return states == {"idle"}


def submit(mortal: Mortal, name: str, ring: Ring = RING, **changes: Any) -> str:
    mortal.post("/jobs", ring.request(name, **changes))
    return name


def reached(mortal: Mortal, name: str, steps: int) -> None:
    """Wait until rank 0's present run has trained so many steps."""
    until(
        lambda: said(mortal, name).reached(),
        lambda trained: trained >= steps,
        limit_s=START_S,
        pause_s=PAUSE_S,
    )


def protected(mortal: Mortal, name: str, *, least: int = 1) -> int:
    """Wait for a complete step; return the newest."""
    found = until(
        lambda: complete_steps(mortal, name),
        lambda steps: max(steps, default=0) >= least,
        limit_s=START_S,
        pause_s=PAUSE_S,
    )
    return found[0]


def ended_well(mortal: Mortal, name: str, ring: Ring = RING) -> Document:
    """Wait for the end, which must be that of an undisturbed run. Return the recovery."""
    until(
        lambda: mortal.get(f"/jobs/{name}"),
        lambda job: job["state"] in ENDED,
        limit_s=END_S,
        pause_s=PAUSE_S,
    )
    job, told = mortal.get(f"/jobs/{name}"), said(mortal, name)
    assert not told.faults
    assert job["state"] == "completed", job["reason"]
    assert told.as_undisturbed(ring)
    recoveries: list[Document] = mortal.get(f"/jobs/{name}/recoveries")["recoveries"]
    assert recoveries, "the job ended before its loss"
    return recoveries[-1]


def homes(mortal: Mortal) -> dict[str, str | None]:
    return {end["name"]: end["home"] for end in mortal.get("/endpoints")["items"]}


def test_a_spare_takes_the_place_of_a_lost_gpu(mortal: Mortal, run_dir: Path) -> None:
    job = submit(mortal, "red")
    reached(mortal, job, 12)
    newest = protected(mortal, job)
    before = mortal.get(f"/jobs/{job}")
    dead = before["endpoints"][-1]
    place = homes(mortal)[dead]
    change = rack.lose(dead, run_dir)
    reached(mortal, job, newest + 1)
    recovery = ended_well(mortal, job)
    assert (recovery["how"], recovery["cause"]) == ("swap", "endpoint")
    ((gone, spare),) = recovery["swaps"].items()
    assert gone == dead
    assert homes(mortal)[spare] == place, "the spare's light is at the dead one's aggregator"
    assert homes(mortal)[dead] is None, "the dead one is dark"
    assert recovery["step_restored"] >= newest
    assert said(mortal, job).starts[-1] == recovery["step_restored"]
    assert abs(recovery["failed_at"] - change.at) < 5.0


def test_a_lost_servers_ranks_all_go_on(mortal: Mortal, run_dir: Path) -> None:
    job = submit(mortal, "blue", spares=2)
    reached(mortal, job, 12)
    newest = protected(mortal, job)
    endpoints = mortal.get(f"/jobs/{job}")["endpoints"]
    servers = {end["name"]: end["server"] for end in mortal.get("/endpoints")["items"]}
    lost = servers[endpoints[-1]]
    dead = {end for end in endpoints if servers[end] == lost}
    assert len(dead) < RING.ranks, (
        "no server has more than half of the ranks: their copies are apart"
    )
    rack.lose(lost, run_dir)
    recovery = ended_well(mortal, job)
    assert recovery["cause"] == "server"
    assert set(recovery["swaps"]) == dead
    assert recovery["step_restored"] >= newest


def test_without_a_spare_left_the_job_waits_and_says_why(mortal: Mortal, run_dir: Path) -> None:
    job = submit(mortal, "grey", spares=0)
    reached(mortal, job, 12)
    protected(mortal, job)
    rack.lose(mortal.get(f"/jobs/{job}")["endpoints"][-1], run_dir)
    recovery = ended_well(mortal, job)
    assert recovery["how"] == "queue"
    assert recovery["why"]
    assert said(mortal, job).starts[-1] == recovery["step_restored"] > 0


def test_a_dead_rank_on_a_working_gpu_starts_again_where_it_was(
    mortal: Mortal, run_dir: Path
) -> None:
    job = submit(mortal, "pink")
    reached(mortal, job, 12)
    newest = protected(mortal, job)
    victim = mortal.get(f"/jobs/{job}")["endpoints"][1]
    rack.lose(victim, run_dir)
    rack.repair(victim, run_dir)  # too short for NVML's watch: only the processes died
    recovery = ended_well(mortal, job)
    assert recovery["how"] in {"again", "swap"}, recovery
    assert recovery["step_restored"] >= newest


def test_an_agent_that_dies_while_it_copies_costs_no_protected_step(
    mortal: Mortal, run_dir: Path
) -> None:
    job = submit(mortal, "green", LONG_RING)
    reached(mortal, job, 12)
    newest = protected(mortal, job)
    written = record.load(run_dir)
    assert written is not None
    endpoints = mortal.get(f"/jobs/{job}")["endpoints"]
    servers = {end["name"]: end["server"] for end in mortal.get("/endpoints")["items"]}
    agent = f"agent-{servers[endpoints[0]]}"
    (process,) = [one for one in written.processes if one.name == agent]
    os.kill(process.pid, signal.SIGKILL)
    log = (run_dir / "logs" / f"{agent}-again.log").open("ab")
    environment = {**os.environ, "PYTHONPATH": str(Path(testbed.__file__).parents[1])}
    with log, subprocess.Popen(process.argv, env=environment, stdout=log, stderr=log) as again:
        try:
            mortal.until(lambda: not mortal.whole(), WHOLE_S)  # its silence is noticed
            mortal.until(mortal.whole, WHOLE_S)
            assert protected(mortal, job, least=newest) >= newest
            rack.lose(endpoints[-1], run_dir)
            recovery = ended_well(mortal, job, LONG_RING)
            assert recovery["how"] == "swap"
            assert recovery["step_restored"] >= newest
        finally:
            again.terminate()
            again.wait(timeout=60)
            # The agent in the rack's record is dead: have the rack start another.
            rack.lose(servers[endpoints[0]], run_dir)
            rack.repair(servers[endpoints[0]], run_dir)


@pytest.mark.parametrize("point", ["swap-decide.after", "swap-light.before", "swap-epoch.after"])
def test_a_controller_that_dies_in_a_swap_finishes_it(
    mortal: Mortal, run_dir: Path, point: str
) -> None:
    job = submit(mortal, point.replace(".", "-"))
    reached(mortal, job, 7)
    newest = protected(mortal, job)
    mortal.die_at(point)
    rack.lose(mortal.get(f"/jobs/{job}")["endpoints"][-1], run_dir)
    mortal.died()
    mortal.die_at("")
    mortal.start()
    recovery = ended_well(mortal, job)
    assert recovery["step_restored"] >= newest
    held = [end for end in mortal.get("/endpoints")["items"] if end["job"]]
    assert not held, "nothing is held after the end"


def test_a_drained_server_loses_no_protected_step(mortal: Mortal, run_dir: Path) -> None:
    job = submit(mortal, "white", spares=2)
    reached(mortal, job, 12)
    newest = protected(mortal, job)
    endpoints = mortal.get(f"/jobs/{job}")["endpoints"]
    servers = {end["name"]: end["server"] for end in mortal.get("/endpoints")["items"]}
    node = servers[endpoints[-1]]
    mortal.post(f"/nodes/{node}/drain", {})
    recovery = ended_well(mortal, job)
    assert recovery["cause"] == "drain"
    assert recovery["step_restored"] >= newest
    after = mortal.get(f"/jobs/{job}")["endpoints"]
    assert not [end for end in after if servers[end] == node]


def test_the_command_line_shows_checkpoints_and_recovery(mortal: Mortal, run_dir: Path) -> None:
    job = submit(mortal, "black")
    reached(mortal, job, 7)
    protected(mortal, job)
    program = str(Path(sys.executable).with_name("lightloom"))
    url = rack.status(run_dir).url
    shown = subprocess.run(
        [program, "--url", url, "checkpoints", job],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    assert "protected" in shown.stdout
