"""What goes wrong between Slurm and lightloom, with the real daemons."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from testbed.demo.errors import DemoError
from testbed.mortal import Mortal
from testbed.rack import process, record
from testbed.rack.slurm import engines, programs
from tests.integration.slurm.parts import TICKS, Document, Slurm, until

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

SCATTERED = ("-N2", "--gres=gpu:1", "-w", "gpu0,gpu2")
TOPOLOGY = "topology.conf"


def daemon(slurm: Slurm, name: str) -> process.Process:
    """Return the newest process of that name that runs."""
    found = record.load(slurm.run_dir)
    assert found is not None
    return next(p for p in reversed(found.processes) if p.name == name and p.alive())


@contextmanager
def stopped(slurm: Slurm, name: str) -> Iterator[None]:
    """Keep a daemon from answering; its connections stay open."""
    pid = daemon(slurm, name).pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def state(slurm: Slurm, number: str) -> str:
    """Return what Slurm says of a job; empty while slurmctld is away."""
    done = engines.run(slurm.run_dir, ("squeue", "-h", "-j", number, "-o", "%T"))
    return done.stdout.strip()


def engine(slurm: Slurm) -> Document:
    return slurm.controller.get("/engine")


def answers(slurm: Slurm, number: str) -> list[Document]:
    return [a for a in engine(slurm)["allocations"] if a["id"] == number]


@contextmanager
def hook_that(slurm: Slurm, more: str) -> Iterator[None]:
    """Let the hook do more when lightloom has answered."""
    path = slurm.folder / "etc" / Path(programs.HOOK).name
    before = path.read_text(encoding="utf-8")
    path.write_text(before.replace("exec ", "") + more + "\n", encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(before, encoding="utf-8")


def kill_slurmctld(slurm: Slurm) -> None:
    """Kill slurmctld and start another."""
    os.kill(daemon(slurm, "slurmctld").pid, signal.SIGKILL)
    folder, found = slurm.folder, record.load(slurm.run_dir)
    assert found is not None
    with process.marked(slurm.run_dir):
        again = process.spawn(
            programs.slurmctld(folder, programs.root_of(folder)),
            record.logs(slurm.run_dir),
            str(slurm.run_dir),
        )
    record.save(slurm.run_dir, replace(found, processes=(*found.processes, again)))


def test_slurmctld_is_killed_in_the_hook(slurm: Slurm) -> None:
    """It may call the hook again: light moves once, and the job starts."""
    with hook_that(slurm, "echo called >>/tmp/hook.calls; sleep 3"):
        number = slurm.submit(*SCATTERED)
        until(lambda: answers(slurm, number), bool)
        kill_slurmctld(slurm)
        until(partial(state, slurm, number), "RUNNING".__eq__)
        running = slurm.running(number)
    assert (running["span"], sorted(running["endpoints"])) == (1, ["gpu0", "gpu2"])
    moves = [answer["moves"] for answer in answers(slurm, number)]
    assert sum(moves) == 1, moves
    assert engine(slurm)["up"]


def test_a_token_expires_and_is_renewed(slurm: Slurm) -> None:
    path = slurm.folder / "token"
    good = path.read_text(encoding="utf-8")
    short = slurm("scontrol", "token", "username=slurm", "lifespan=10").partition("=")[2]
    try:
        path.write_text(short, encoding="utf-8")
        down = until(lambda: engine(slurm), lambda view: not view["up"])
        assert "token" in down["detail"] or "expired" in down["detail"], down["detail"]
        lines = slurm.controller.get("/engine/check")["checks"]
        mends = [line["mend"] for line in lines if line["grade"] == "fault"]
        assert any("scontrol token" in mend for mend in mends), lines
        began = time.monotonic()
        assert slurm("srun", *SCATTERED, "hostname")
        print(f"without the engine's answer a job starts after {time.monotonic() - began:.1f} s")
    finally:
        path.write_text(good, encoding="utf-8")
    until(lambda: engine(slurm), lambda view: view["up"])


def test_the_controller_is_dead(slurm: Slurm, mortal: Mortal) -> None:
    """Jobs start without it; it finds them when it is back."""
    mortal.kill()
    try:
        number = slurm.submit(*SCATTERED)
        until(partial(state, slurm, number), "RUNNING".__eq__)
    finally:
        mortal.start()
    assert slurm.running(number)["span"] == 2


def test_a_new_topology_waits_for_a_job_that_ends(slurm: Slurm) -> None:
    """A slurmd that reads its files again would forget the job, whose processes take KillWait."""
    number = slurm.submit(
        "-N1", "--gres=gpu:1", "-w", "gpu4", script=f"srun sh -c 'trap : TERM; {TICKS}'"
    )
    slurm.running(number)
    until(lambda: slurm.output(number), bool)
    until(slurm.told, bool)
    slurm("scancel", "--full", number)
    until(partial(state, slurm, number), "COMPLETING".__eq__)
    done = slurm.controller.post("/endpoints/gpu0/attachment", {"aggregator": "as1"}, wait_s=60.0)
    assert done["state"] == "committed", done
    until(slurm.told, bool)
    assert state(slurm, number) == ""
    log = record.logs(slurm.run_dir) / "slurmd-gpu4.log"
    assert "Timeout waiting for completion" not in log.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("SwitchName=mine Nodes=gpu[0-5]\n", "lightloom did not write it"),
        ("# Written by lightloom for site other, epoch 7. Changes by hand are lost.\n", "other"),
    ],
    ids=["a person's", "another lightloom's"],
)
def test_a_foreign_topology_is_left_alone(slurm: Slurm, text: str, why: str) -> None:
    path = slurm.folder / "etc" / TOPOLOGY
    until(lambda: engine(slurm), lambda view: view["published"]["at"])
    ours = path.read_text(encoding="utf-8")
    try:
        path.write_text(text, encoding="utf-8")
        assert slurm("srun", *SCATTERED, "hostname"), "light moves, and the job starts"
        said = until(lambda: engine(slurm)["published"]["error"], bool)
        assert why in said
        assert path.read_text(encoding="utf-8") == text
    finally:
        path.write_text(ours, encoding="utf-8")
    until(lambda: engine(slurm)["published"]["error"], lambda said: not said)


def applied(slurm: Slurm, plan: Document) -> Document:
    """Apply a plan; return its transaction, or the refusal."""
    try:
        return slurm.controller.post("/transactions", {"plan": plan}, wait_s=60.0)
    except DemoError as refusal:
        return {"state": "refused", "error": str(refusal)}


def test_a_job_ends_between_plan_and_apply(slurm: Slurm) -> None:
    """Either its end is known, and idle light moves; or Slurm is asked, and nothing moves."""
    number = slurm.submit(*SCATTERED, "--comment=lightloom:locality=any")
    assert slurm.running(number)["span"] == 2
    plan = slurm.controller.post("/plans", {"job": f"slurm-{number}"})
    before = slurm.homes
    slurm("scancel", number)
    done = applied(slurm, plan)
    if done["state"] != "committed":
        assert re.search(r"changed|ended|no longer|epoch", str(done)), done
        assert slurm.homes == before
    ended = until(slurm.job(number), lambda found: found["finished_at"])
    assert (ended["state"], ended["pauses"]) == ("cancelled", 0)


def test_slurm_is_away_when_a_plan_is_applied(slurm: Slurm) -> None:
    """What cannot be confirmed is not moved; the job runs on."""
    number = slurm.submit(*SCATTERED, "--comment=lightloom:locality=any")
    assert slurm.running(number)["span"] == 2
    plan = slurm.controller.post("/plans", {"job": f"slurm-{number}"})
    before = slurm.homes
    with stopped(slurm, "slurmrestd"):
        done = applied(slurm, plan)
    assert done["state"] != "committed", done
    assert re.search(r"slurm|answer|time", str(done)), done
    assert slurm.homes == before
    until(lambda: engine(slurm), lambda view: view["up"])
    assert slurm.job(number)()["state"] == "running"


def test_every_task_of_an_array_and_every_part_of_a_job_has_its_own_light(slurm: Slurm) -> None:
    first = slurm.submit("-N1", "--gres=gpu:1", "--array=0-1")
    seen = until(
        lambda: slurm("squeue", "-h", "-r", "-t", "RUNNING", "-o", "%A %F %N").splitlines(),
        lambda lines: len(lines) == 2,
    )
    for line in seen:
        number, array, node = line.split()
        assert array == first
        assert slurm.running(number)["endpoints"] == [node]
    slurm.empty()
    parts = ("-N2", "--gres=gpu:1", ":", "-N1", "--gres=gpu:1")
    leader = slurm.submit(*parts)
    running = slurm.running(leader)
    assert len(running["endpoints"]) == 2
    other = slurm.running(str(int(leader) + 1))
    assert len(other["endpoints"]) == 1
    assert not set(other["endpoints"]) & set(running["endpoints"])


def test_a_hostile_comment_is_text(slurm: Slurm) -> None:
    hostile = "lightloom:policy=\x1b[31mred,pinned,<script>alert(1)</script>,locality=" + "x" * 600
    number = slurm.submit("-N1", "--gres=gpu:1", f"--comment={hostile}")
    found = slurm.running(number)
    shown = str(found)
    assert "\x1b" not in shown
    assert re.search(r"x{300}", shown) is None
    assert found["request"]["pinned"] if "request" in found else True
