"""The rack under a real Slurm: allocations, running jobs and waiting jobs, and what is left."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sitefile import load_site
from testbed import rack
from testbed.demo import PAPER_SITE
from testbed.demo.api import Controller
from testbed.demo.errors import DemoError
from testbed.rack import remains
from testbed.rack.slurm import engines, programs
from tests.integration import waiting

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

RUN_DIR = Path("/run/lightloom/test-slurm")
TICKS = "while :; do date +%s.%N; sleep 0.02; done"
until = partial(waiting.until, limit_s=60.0)
Document = dict[str, Any]


@pytest.fixture(scope="module")
def controller() -> Iterator[Controller]:
    status = rack.up(PAPER_SITE, RUN_DIR, progress=lambda line: None, slurm="open")
    try:
        with Controller(status.url) as made:
            yield made
    finally:
        rack.down(RUN_DIR, progress=lambda line: None)
    assert remains.find(RUN_DIR).empty


@pytest.fixture(autouse=True)
def nothing_left(controller: Controller) -> Iterator[None]:
    """Every test begins with an empty Slurm, and the light at the site file's homes."""
    yield
    slurm("scancel", "--user=root", "--full")
    until(lambda: slurm("squeue", "-h"), lambda text: not text)
    for _ in range(2):  # the ports of an aggregator are few: one move may wait for another
        for name, home in load_site(PAPER_SITE).homes.items():
            if home_of(controller, name) != home:
                move(controller, name, home)


def slurm(*argv: str) -> str:
    done = engines.run(RUN_DIR, argv)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def move(controller: Controller, endpoint: str, home: str) -> None:
    with suppress(DemoError):
        controller.post(f"/endpoints/{endpoint}/attachment", {"aggregator": home})
    with suppress(AssertionError):
        until(lambda: home_of(controller, endpoint), lambda now: now == home, limit_s=5.0)


def home_of(controller: Controller, endpoint: str) -> str | None:
    found = controller.get("/endpoints")["items"]
    home: str | None = next(e["home"] for e in found if e["name"] == endpoint)
    return home


def submit(*options: str, script: str = "srun sleep 600") -> str:
    """Submit a batch job; return its number."""
    said = slurm("sbatch", "--parsable", "--output=/tmp/%j.out", *options, "--wrap", script)
    return said.partition(";")[0]


def job(controller: Controller, number: str) -> Callable[[], Document]:
    def ask() -> Document:
        found = [j for j in controller.get("/jobs")["items"] if j["name"] == f"slurm-{number}"]
        return found[0] if found else {"state": "unknown", "endpoints": [], "engine": {}}

    return ask


def output(number: str) -> list[float]:
    """Return the times that a job has printed."""
    text = (programs.folder_of(RUN_DIR) / "tmp" / f"{number}.out").read_text(encoding="utf-8")
    return [float(line) for line in text.splitlines() if line.replace(".", "").isdigit()]


def test_the_set_up_is_whole(controller: Controller) -> None:
    checks = until(lambda: controller.get("/engine/check"), lambda view: view["ok"])
    assert {line["grade"] for line in checks["checks"]} <= {"ok", "warning"}
    status = until(lambda: controller.get("/engine"), lambda view: view["published"]["at"])
    assert (status["up"], status["version"][:6], status["endpoints"]) == (True, "24.11.", 6)


def test_light_moves_under_an_allocation_before_the_job_starts(controller: Controller) -> None:
    printed = slurm("srun", "-N2", "--gres=gpu:1", "-w", "gpu0,gpu2", "hostname")
    assert sorted(printed.splitlines()) == ["gpu0", "gpu2"]
    answers = controller.get("/engine")["allocations"]
    assert answers[0]["verdict"] == "go"
    assert answers[0]["text"].startswith("2 endpoints under 1 aggregator")
    ended = until(job(controller, answers[0]["id"]), lambda found: found["state"] == "completed")
    assert (ended["pauses"], ended["span"]) == (0, 1)
    told = slurm("scontrol", "show", "job", answers[0]["id"])
    assert "AdminComment=lightloom go: 2 endpoints under 1 aggregator" in told


def test_two_nodes_reach_each_other_over_the_light(controller: Controller) -> None:
    """The data NIC of gpu2 answers gpu0: the aggregators have rules for the engine's endpoints."""
    site = controller.get("/site")
    there = next(e["ip"] for e in controller.get("/endpoints")["items"] if e["name"] == "gpu2")
    assert site
    text = "ip neigh flush all; ip route get $0 >/dev/null; exec 3<>/dev/udp/$0/9; echo x >&3;"
    text += " sleep 1; ip neigh show dev e0"
    printed = slurm("srun", "-N2", "--gres=gpu:1", "-w", "gpu0,gpu2", "bash", "-c", text, there)
    assert "REACHABLE" in printed or "DELAY" in printed or "STALE" in printed, printed


def test_a_scattered_job_is_regrouped_with_all_its_ranks_frozen(controller: Controller) -> None:
    options = ("-N2", "--gres=gpu:1", "-w", "gpu0,gpu2", "--comment=lightloom:locality=any")
    number = submit(*options, script=f"srun sh -c '{TICKS}'")
    running = until(job(controller, number), lambda found: found["state"] == "running")
    assert running["span"] == 2
    until(lambda: output(number), lambda ticks: len(ticks) > 100)
    plan = controller.post("/plans", {"job": f"slurm-{number}"})
    assert plan["moves"]
    done = controller.post("/transactions", {"plan": plan}, wait_s=60.0)
    assert done["state"] == "committed", done
    found = job(controller, number)()
    assert (found["span"], found["pauses"], found["state"]) == (1, 1, "running")
    # A frozen process prints no time: none lies between the freeze and the thaw.
    seen = len(output(number))
    ticks = until(lambda: output(number), lambda ticks: len(ticks) > seen + 20)
    phases = {phase["name"]: phase for phase in done["phases"]}
    frozen, thawed = phases["quiesce"]["finished_at"], phases["resume"]["started_at"]
    assert frozen < thawed
    assert not [tick for tick in ticks if frozen < tick < thawed]
    assert min(ticks) < frozen < thawed < max(ticks)


def test_a_job_that_waits_for_one_leaf_is_helped(controller: Controller) -> None:
    until(lambda: controller.get("/engine"), lambda view: view["published"]["at"])
    for endpoint in ("gpu0", "gpu1", "gpu2"):
        number = submit("-N1", "--gres=gpu:1", "-w", endpoint)
        until(job(controller, number), lambda found: found["state"] == "running")
    number = submit("-N3", "--gres=gpu:1", "--switches=1@1200")
    began = time.monotonic()
    found = until(job(controller, number), lambda found: found["state"] == "running")
    print(f"started {time.monotonic() - began:.1f} s after it was submitted")
    assert (found["span"], sorted(found["endpoints"])) == (1, ["gpu3", "gpu4", "gpu5"])
    status = controller.get("/engine")
    helped = next(entry for entry in status["helped"] if entry["job"] == f"slurm-{number}")
    assert helped["moves"] == 1
    assert status["published"]["error"] == ""
    pauses = [j["pauses"] for j in controller.get("/jobs")["items"] if not j["finished_at"]]
    assert not any(pauses), "no running job was touched"


def test_slurm_and_the_controller_may_restart(controller: Controller) -> None:
    number = submit("-N2", "--gres=gpu:1", "-w", "gpu0,gpu1", script=f"srun sh -c '{TICKS}'")
    until(job(controller, number), lambda found: found["state"] == "running")
    slurm("scontrol", "reconfigure")
    requeued = slurm("scontrol", "requeue", number)
    assert requeued == ""
    again = until(job(controller, number), lambda found: found.get("restarts") == 1, limit_s=180.0)
    assert again["engine"]["attempt"] == 1
    slurm("scancel", number)
    ended = until(job(controller, number), lambda found: found["state"] == "cancelled")
    assert ended["engine"]["id"] == number


def test_only_slurm_ends_its_jobs(controller: Controller) -> None:
    number = submit("-N1", "--gres=gpu:1")
    until(job(controller, number), lambda found: found["state"] == "running")
    with pytest.raises(DemoError, match="slurm"):
        controller.post(f"/jobs/slurm-{number}/cancel", {})


def test_the_processes_of_a_job_are_in_cgroups_below_the_racks(controller: Controller) -> None:
    number = submit("-N1", "--gres=gpu:1", "-w", "gpu4")
    until(job(controller, number), lambda found: found["state"] == "running")
    found = subprocess.run(
        ["find", "/sys/fs/cgroup/freezer/ll-slurm", "-name", f"job_{number}"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert f"slurm_gpu4/uid_0/job_{number}" in found
