"""Slurm's jobs on the rack: allocations, running jobs and waiting jobs, and what is left."""

from __future__ import annotations

import subprocess
import time

import pytest

from container_mgr.hardware.tcp import CONGESTION_CONTROLS
from testbed.demo.errors import DemoError
from testbed.demo.trainer_log import TrainerLog
from testbed.rack.slurm import programs
from tests.integration.agent_parts import ip
from tests.integration.slurm.parts import TICKS, Slurm, until

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]


def ticks_of(slurm: Slurm, number: str) -> list[float]:
    """Return the times that a job has printed."""
    lines = slurm.output(number).splitlines()
    return [float(line) for line in lines if line.replace(".", "").isdigit()]


def test_the_set_up_is_whole(slurm: Slurm) -> None:
    checks = until(lambda: slurm.controller.get("/engine/check"), lambda view: view["ok"])
    assert {line["grade"] for line in checks["checks"]} <= {"ok", "warning"}
    status = until(lambda: slurm.controller.get("/engine"), lambda view: view["published"]["at"])
    assert (status["up"], status["version"][:6], status["endpoints"]) == (True, "24.11.", 6)


def test_tcp_on_the_nodes_is_that_of_containers(slurm: Slurm) -> None:
    """Whatever this machine's defaults: BBR's losses can leave a connection nothing for 20 s."""
    used = slurm("srun", "-N1", "-w", "gpu0", "cat", "/proc/sys/net/ipv4/tcp_congestion_control")
    assert used.strip() in CONGESTION_CONTROLS
    assert "rto_min lock 20ms" in ip("-n", "ll-n-gpu0", "route", "show", "dev", "e0")


def test_light_moves_under_an_allocation_before_the_job_starts(slurm: Slurm) -> None:
    printed = slurm("srun", "-N2", "--gres=gpu:1", "-w", "gpu0,gpu2", "hostname")
    assert sorted(printed.splitlines()) == ["gpu0", "gpu2"]
    answers = slurm.controller.get("/engine")["allocations"]
    assert answers[0]["verdict"] == "go"
    assert answers[0]["text"].startswith("2 endpoints under 1 aggregator")
    ended = until(slurm.job(answers[0]["id"]), lambda found: found["state"] == "completed")
    assert (ended["pauses"], ended["span"]) == (0, 1)
    told = slurm("scontrol", "show", "job", answers[0]["id"])
    assert "AdminComment=lightloom go: 2 endpoints under 1 aggregator" in told


def test_a_job_trains_by_srun(slurm: Slurm) -> None:
    train = "python3 -m testbed.trainer --samples 48 --global-batch 16 --settle 0"
    script = f"srun --label {programs.RANK} {train}"
    number = slurm.submit("-N2", "--gres=gpu:1", "-w", "gpu0,gpu2", script=script)
    ended = until(slurm.job(number), lambda found: found["finished_at"], limit_s=180.0)
    text = slurm.output(number)
    assert (ended["state"], ended["span"]) == ("completed", 1), text
    log = TrainerLog(number, 2)
    for line in text.splitlines():
        rank, _, said = line.partition(": ")
        if rank == "srun":  # it waits for the nodes of the job before, and says so
            print(line)
        else:
            log.add(int(rank), said)
    assert [len(log.steps[rank]) for rank in (0, 1)] == [3, 3]
    assert log.ends[0].final_loss == log.ends[1].final_loss


def test_two_nodes_reach_each_other_over_the_light(slurm: Slurm) -> None:
    """The data NIC of gpu2 answers gpu0: the aggregators have rules for the engine's endpoints."""
    site = slurm.controller.get("/site")
    there = next(
        e["ip"] for e in slurm.controller.get("/endpoints")["items"] if e["name"] == "gpu2"
    )
    assert site
    text = "ip neigh flush all; ip route get $0 >/dev/null; exec 3<>/dev/udp/$0/9; echo x >&3;"
    text += " sleep 1; ip neigh show dev e0"
    printed = slurm("srun", "-N2", "--gres=gpu:1", "-w", "gpu0,gpu2", "bash", "-c", text, there)
    assert "REACHABLE" in printed or "DELAY" in printed or "STALE" in printed, printed


def test_a_scattered_job_is_regrouped_with_all_its_ranks_frozen(slurm: Slurm) -> None:
    options = ("-N2", "--gres=gpu:1", "-w", "gpu0,gpu2", "--comment=lightloom:locality=any")
    number = slurm.submit(*options, script=f"srun sh -c '{TICKS}'")
    running = slurm.running(number)
    assert running["span"] == 2
    until(lambda: ticks_of(slurm, number), lambda ticks: len(ticks) > 100)
    plan = slurm.controller.post("/plans", {"job": f"slurm-{number}"})
    assert plan["moves"]
    done = slurm.controller.post("/transactions", {"plan": plan}, wait_s=60.0)
    assert done["state"] == "committed", done
    found = slurm.job(number)()
    assert (found["span"], found["pauses"], found["state"]) == (1, 1, "running")
    # A frozen process prints no time: none lies between the freeze and the thaw.
    seen = len(ticks_of(slurm, number))
    ticks = until(lambda: ticks_of(slurm, number), lambda ticks: len(ticks) > seen + 20)
    phases = {phase["name"]: phase for phase in done["phases"]}
    frozen, thawed = phases["quiesce"]["finished_at"], phases["resume"]["started_at"]
    assert frozen < thawed
    assert not [tick for tick in ticks if frozen < tick < thawed]
    assert min(ticks) < frozen < thawed < max(ticks)


def test_a_job_that_waits_for_one_leaf_is_helped(slurm: Slurm) -> None:
    until(lambda: slurm.controller.get("/engine"), lambda view: view["published"]["at"])
    for endpoint in ("gpu0", "gpu1", "gpu2"):
        number = slurm.submit("-N1", "--gres=gpu:1", "-w", endpoint)
        slurm.running(number)
    number = slurm.submit("-N3", "--gres=gpu:1", "--switches=1@1200")
    began = time.monotonic()
    found = slurm.running(number)
    print(f"started {time.monotonic() - began:.1f} s after it was submitted")
    assert (found["span"], sorted(found["endpoints"])) == (1, ["gpu3", "gpu4", "gpu5"])
    status = slurm.controller.get("/engine")
    helped = next(entry for entry in status["helped"] if entry["job"] == f"slurm-{number}")
    assert helped["moves"] == 1
    assert status["published"]["error"] == ""
    pauses = [j["pauses"] for j in slurm.controller.get("/jobs")["items"] if not j["finished_at"]]
    assert not any(pauses), "no running job was touched"


def test_slurm_and_the_controller_may_restart(slurm: Slurm) -> None:
    number = slurm.submit("-N2", "--gres=gpu:1", "-w", "gpu0,gpu1", script=f"srun sh -c '{TICKS}'")
    slurm.running(number)
    slurm("scontrol", "reconfigure")
    requeued = slurm("scontrol", "requeue", number)
    assert requeued == ""
    again = until(slurm.job(number), lambda found: found.get("restarts") == 1, limit_s=180.0)
    assert again["engine"]["attempt"] == 1
    slurm("scancel", number)
    ended = until(slurm.job(number), lambda found: found["state"] == "cancelled")
    assert ended["engine"]["id"] == number


def test_only_slurm_ends_its_jobs(slurm: Slurm) -> None:
    number = slurm.submit("-N1", "--gres=gpu:1")
    slurm.running(number)
    with pytest.raises(DemoError, match="slurm"):
        slurm.controller.post(f"/jobs/slurm-{number}/cancel", {})


def test_the_processes_of_a_job_are_in_cgroups_below_the_racks(slurm: Slurm) -> None:
    number = slurm.submit("-N1", "--gres=gpu:1", "-w", "gpu4")
    slurm.running(number)
    found = subprocess.run(
        ["find", "/sys/fs/cgroup/freezer/ll-slurm", "-name", f"job_{number}"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert f"slurm_gpu4/uid_0/job_{number}" in found
