"""On the rack: a lost GPU's place is taken by a spare, and the job goes on where it was."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import testbed
from testbed import rack
from testbed.kept_ring import printed
from testbed.mortal import Mortal
from testbed.rack import record
from tests.integration.spare_parts import (
    END_S,
    ENDED,
    RING,
    WHOLE_S,
    ended_well,
    homes,
    made_whole,
    mortal_rack,
    protected,
    reached,
    submit,
)

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

SITE = Path(testbed.__file__).parent / "sites" / "spare.yaml"
LAST_RELEASE = "9056eea"
"""The commit of the release before this one."""
RUN_DIR = Path(f"/run/lightloom/test-spare-{os.getpid()}")
MIDDLE_RING = replace(RING, steps=320)
"""For a loss that comes after a restart of the controller."""
LONG_RING = replace(RING, steps=600)
"""For a loss that comes only after an agent's death was noticed and mended."""
ROOMY_RING = replace(LONG_RING, room=16)
"""For the older release: after a swap it leaves steps in the folders that nobody completes."""


@pytest.fixture(scope="module")
def run_dir() -> Path:
    return RUN_DIR


@pytest.fixture(scope="module")
def mortal(run_dir: Path) -> Iterator[Mortal]:
    """The rack's controller, which can be killed at any point of a swap."""
    with mortal_rack(SITE, run_dir) as made:
        yield made


@pytest.fixture(autouse=True)
def whole(mortal: Mortal, run_dir: Path) -> Iterator[None]:
    yield
    made_whole(mortal, run_dir)


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
    assert printed(mortal, job).starts[-1] == recovery["step_restored"]
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


@pytest.mark.soak
def test_without_a_spare_left_the_job_waits_and_says_why(mortal: Mortal, run_dir: Path) -> None:
    job = submit(mortal, "grey", spares=0)
    reached(mortal, job, 12)
    protected(mortal, job)
    rack.lose(mortal.get(f"/jobs/{job}")["endpoints"][-1], run_dir)
    recovery = ended_well(mortal, job)
    assert recovery["how"] == "queue"
    assert recovery["why"]
    assert printed(mortal, job).starts[-1] == recovery["step_restored"] > 0


@pytest.mark.soak
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


@pytest.mark.soak
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


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("swap-decide.after", marks=pytest.mark.soak),
        "swap-light.before",
        pytest.param("swap-epoch.after", marks=pytest.mark.soak),
    ],
)
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


@contextmanager
def store_of(mortal: Mortal, run_dir: Path, copy: Path | None) -> Iterator[None]:
    """Run a controller on an older ``copy`` of the store, or on none; then on the right one."""
    kept = run_dir / "the-store"
    mortal.kill()
    move_store(run_dir / "controller", kept)
    if copy is not None:
        shutil.copytree(copy, run_dir / "controller", dirs_exist_ok=True)
    try:
        mortal.spawn("--take-command")
        yield
    finally:
        mortal.kill()
        move_store(run_dir / "controller", run_dir / "used")
        move_store(kept, run_dir / "controller")
        mortal.spawn("--take-command")
        mortal.until(mortal.whole, WHOLE_S)


def move_store(source: Path, target: Path) -> None:
    target.mkdir(exist_ok=True)
    for file in source.glob("controller.sqlite*"):
        file.replace(target / file.name)


def containers(mortal: Mortal) -> set[str]:
    return {c["container_id"] for c in mortal.get("/containers")["items"]}


def events(mortal: Mortal, reason: str) -> list[dict[str, Any]]:
    return [e for e in mortal.get("/events", limit=1000)["items"] if e["reason"] == reason]


def test_an_older_copy_of_the_store_stops_no_run_and_loses_no_checkpoint(
    mortal: Mortal, run_dir: Path, tmp_path: Path
) -> None:
    """The job lost a GPU after the copy was made, and goes on in a run that the copy lacks."""
    job = submit(mortal, "older", MIDDLE_RING)
    reached(mortal, job, 12)
    first = protected(mortal, job)
    mortal.kill()
    shutil.copytree(run_dir / "controller", tmp_path / "copy")
    mortal.start()
    rack.lose(mortal.get(f"/jobs/{job}")["endpoints"][-1], run_dir)
    mortal.until(lambda: mortal.get(f"/jobs/{job}/recoveries").get("recoveries"), WHOLE_S)
    mortal.until(lambda: mortal.get(f"/jobs/{job}")["state"] == "running", WHOLE_S)
    newest = protected(mortal, job, least=first + 10)
    before = mortal.get(f"/jobs/{job}")
    ranks = containers(mortal)
    with store_of(mortal, run_dir, tmp_path / "copy"):
        mortal.until(lambda: events(mortal, "LaterRunAdopted"), WHOLE_S)
        after = mortal.get(f"/jobs/{job}")
        assert (after["state"], after["endpoints"]) == ("running", before["endpoints"])
        assert containers(mortal) == ranks, "no rank was stopped or started"
    assert containers(mortal) == ranks
    protected(mortal, job, least=newest + 20)  # and none is lost: the ring's last state says so
    mortal.until(lambda: mortal.get(f"/jobs/{job}")["state"] in ENDED, END_S)
    assert mortal.get(f"/jobs/{job}")["state"] == "completed"
    assert printed(mortal, job).as_undisturbed(MIDDLE_RING)


def test_an_empty_store_stops_no_run_and_loses_no_checkpoint(mortal: Mortal, run_dir: Path) -> None:
    job = submit(mortal, "unknown", MIDDLE_RING)
    reached(mortal, job, 12)
    newest = protected(mortal, job)
    ranks = containers(mortal)
    with store_of(mortal, run_dir, None):
        mortal.until(lambda: mortal.get("/health").get("strangers"), WHOLE_S)
        assert "lightloom store accept" in mortal.get("/health")["older"]
        assert containers(mortal) == ranks
    assert containers(mortal) == ranks
    assert protected(mortal, job, least=newest) >= newest
    mortal.until(lambda: mortal.get(f"/jobs/{job}")["state"] in ENDED, END_S)
    assert printed(mortal, job).as_undisturbed(MIDDLE_RING)


def released(folder: Path) -> Path | None:
    """Return the tree of the last release; None in a clone without its history."""
    root = Path(testbed.__file__).parent.parent
    archive = ["git", "-c", f"safe.directory={root}", "-C", str(root), "archive", LAST_RELEASE]
    made = subprocess.run(archive, capture_output=True, check=False, timeout=60)
    if made.returncode:
        return None
    folder.mkdir()
    with tarfile.open(fileobj=io.BytesIO(made.stdout)) as tree:
        tree.extractall(folder, filter="data")
    return folder


def test_an_older_release_stops_no_run_and_loses_no_checkpoint(
    mortal: Mortal, run_dir: Path, tmp_path: Path
) -> None:
    """The older program goes on with the store, and moves a job; then an upgrade follows.

    Both starts of the present program find what the older one did: on the store that it wrote,
    and on the copy from before, which knows nothing of it. Without the release's history the
    present program does what the older one does here.
    """
    job = submit(mortal, "back", ROOMY_RING)
    reached(mortal, job, 12)
    first = protected(mortal, job)
    ranks = containers(mortal)
    mortal.kill()
    shutil.copytree(run_dir / "controller", tmp_path / "copy")
    mortal.spawn(tree=released(tmp_path / "release"))
    newest = protected(mortal, job, least=first + 10)
    assert containers(mortal) == ranks, "the older release takes the run as it is"
    rack.lose(mortal.get(f"/jobs/{job}")["endpoints"][-1], run_dir)
    mortal.until(lambda: mortal.get(f"/jobs/{job}/recoveries").get("recoveries"), WHOLE_S)
    mortal.until(lambda: mortal.get(f"/jobs/{job}")["state"] == "running", WHOLE_S)
    reached(mortal, job, newest + 12)  # the older release may protect no step of the new run
    before, ranks = mortal.get(f"/jobs/{job}"), containers(mortal)
    with store_of(mortal, run_dir, tmp_path / "copy"):
        mortal.until(lambda: events(mortal, "LaterRunAdopted"), WHOLE_S)
        after = mortal.get(f"/jobs/{job}")
        assert (after["state"], after["endpoints"]) == ("running", before["endpoints"])
        assert containers(mortal) == ranks, "no rank was stopped or started"
    assert containers(mortal) == ranks
    protected(mortal, job, least=newest + 20)  # and none is lost: the ring's last state says so
    mortal.until(lambda: mortal.get(f"/jobs/{job}")["state"] in ENDED, END_S)
    assert mortal.get(f"/jobs/{job}")["state"] == "completed"
    assert printed(mortal, job).as_undisturbed(ROOMY_RING)


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
