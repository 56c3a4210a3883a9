"""The whole line on the rack: jobs, a regroup, light moved by hand and brought back by a file."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from testbed.demo import PAPER_SITE
from testbed.demo.api import Controller, Document
from testbed.rack import ovs
from tests.integration import waiting
from tests.integration.machine import run
from tests.integration.racks import rack_of

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

JOBS = {"red": ("gpu0", "gpu2"), "blue": ("gpu1", "gpu4"), "green": ("gpu3", "gpu5")}
"""Red is scattered over both aggregators; blue and green are compact, one under each."""
INTERVAL_S = 0.01
OVERTAKEN_S = 5.0
"""A frame that a busy switch asks its own slow path about is overtaken by those behind it."""


SITES = (
    "paper",
    "paper-polatis-scpi",
    pytest.param("paper-polatis-netconf", marks=pytest.mark.soak),
)
"""One rack, three optical switches: the files differ in the switch's URL alone."""


@pytest.fixture(params=SITES, scope="module")
def controller(request: pytest.FixtureRequest) -> Iterator[Controller]:
    run_dir = Path(f"/run/lightloom/test-{os.getpid()}")
    site = PAPER_SITE.with_stem(request.param)
    with rack_of(site, run_dir) as status, Controller(status.url) as made:
        yield made
    left = [name for name in run("ip", "netns", "list").split() if name.startswith("ll-")]
    assert not left, "the rack is taken down whole"


until = partial(waiting.until, limit_s=60.0)


def ping(job: str, address: str) -> list[str]:
    """Return the words that ping an address from rank 0 of a job, inside its namespace."""
    names = [line.split()[0] for line in run("ip", "netns", "list").splitlines()]
    netns = next(name for name in names if name.startswith(f"ll-c-{job}-0-"))
    return ["ip", "netns", "exec", netns, "ping", "-i", str(INTERVAL_S), address]


def received(job: str, address: str, count: int) -> int:
    """Send ``count`` pings and return how many were answered."""
    argv = [*ping(job, address), "-q", "-c", str(count), "-W", "2"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    found = re.search(r"(\d+) received", done.stdout)
    assert found, done.stdout
    return int(found[1])


def reaches(job: str, address: str) -> bool:
    """Whether all of a few pings in a row are answered; the first may wait for its neighbour."""
    return received(job, address, 5) == 5


class Pinger:
    """Pings all the time; every answer counts, so that one that is missing shows."""

    def __init__(self, job: str, address: str, file: Path) -> None:
        self._file = file
        with file.open("w") as out:
            self._process = subprocess.Popen(ping(job, address), stdout=out)

    def answered(self) -> set[int]:
        """The numbers of the pings that were answered so far."""
        return {int(n) for n in re.findall(r"icmp_seq=(\d+) ", self._file.read_text())}

    def missing(self) -> set[int]:
        """The numbers that were left out, up to one that was sent after this call."""
        goal = max(self.answered(), default=0) + 20
        until(lambda: max(self.answered(), default=0) >= goal)
        deadline = time.monotonic() + OVERTAKEN_S
        while (left := set(range(1, goal + 1)) - self.answered()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=60)


def test_a_regroup_joins_a_job_and_its_neighbours_lose_no_packet(
    controller: Controller, tmp_path: Path
) -> None:
    for name, ends in JOBS.items():
        job = {"name": name, "count": 2, "endpoints": list(ends), "command": ["sleep", "3600"]}
        controller.post("/jobs", job)
    jobs: Callable[[], list[Document]] = lambda: controller.items("/jobs")  # noqa: E731
    until(lambda: all(job["state"] == "running" for job in jobs()))
    ips = {e["name"]: e["ip"] for e in controller.items("/endpoints")}
    for name, (_, other) in JOBS.items():
        until(partial(reaches, name, ips[other]))
    assert received("red", ips["gpu1"], 3) == 0, "jobs stay apart"

    plan = controller.post("/plans", {})
    assert {move["endpoint"] for move in plan["moves"]} <= set(JOBS["red"])
    neighbours = {
        name: Pinger(name, ips[JOBS[name][1]], tmp_path / name) for name in ("blue", "green")
    }
    try:
        before = {name: one.missing() for name, one in neighbours.items()}
        done = controller.post("/transactions", {"plan": plan}, wait_s=60)
        assert done["state"] == "committed"
        lost = {name: one.missing() for name, one in neighbours.items()}
    finally:
        for one in neighbours.values():
            one.stop()
    assert lost == before == {"blue": set(), "green": set()}

    assert [job["span"] for job in jobs()] == [1, 1, 1]
    until(lambda: reaches("red", ips["gpu2"]))
    assert received("red", ips["gpu1"], 3) == 0, "jobs stay apart"


def lightloom(controller: Controller, *argv: str, code: int = 0) -> str:
    """Run the command against the rack's controller and return what it printed."""
    env = {**os.environ, "LIGHTLOOM_URL": controller.url}
    command = [
        sys.executable,
        "-c",
        "import sys; from console.cli.main import main; sys.exit(main())",
        *argv,
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=env
    )
    assert done.returncode == code, f"{argv}: {done.stdout}{done.stderr}"
    return done.stdout


def homes(controller: Controller) -> dict[str, str]:
    return {e["name"]: e["home"] for e in controller.items("/endpoints")}


def lit(controller: Controller) -> dict[str, str]:
    """Where the circuits lead that were read back from the switch."""
    return {c["endpoint"]: c["aggregator"] for c in controller.items("/circuits")}


def admitted(endpoints: dict[str, str]) -> dict[str, set[str]]:
    """Per aggregator, which of some endpoints (by name, with address) a port of its own admits."""
    env = ovs.environment(Path(f"/run/lightloom/test-{os.getpid()}"))
    found = {}
    for aggregator in ("as0", "as1"):
        argv = ("ovs-ofctl", "-O", "OpenFlow13", "dump-flows", f"ll-{aggregator}", "table=0")
        rules = [
            line
            for line in run(*argv, env=env).splitlines()
            if "in_port" in line and not re.search(r'in_port=(8|"as.-u8")\b', line)
        ]
        found[aggregator] = {
            name
            for name, ip in endpoints.items()
            if any(re.search(rf"(nw_src|arp_spa)={re.escape(ip)}\b", rule) for rule in rules)
        }
    return found


def test_moved_by_hand_and_brought_back_by_a_file(controller: Controller, tmp_path: Path) -> None:
    for job in controller.items("/jobs"):
        if job["finished_at"] is None:
            controller.post(f"/jobs/{job['name']}/cancel")
    ips = {e["name"]: e["ip"] for e in controller.items("/endpoints")}
    before = homes(controller)
    one, other = (next(e for e, home in before.items() if home == a) for a in ("as0", "as1"))
    asked = {"name": "pair", "count": 2, "endpoints": [one, other], "command": ["sleep", "3600"]}
    controller.post("/jobs", asked)
    until(lambda: controller.get("/jobs/pair")["state"] == "running")
    rank = {e: i for i, e in enumerate(controller.get("/jobs/pair")["endpoints"])}
    peer = ips[next(e for e, i in rank.items() if i == 1)]
    until(lambda: reaches("pair", peer))

    pair = {name: ips[name] for name in (one, other)}
    _is_there(controller, before, pair)
    file = tmp_path / "fabric.yaml"
    lightloom(controller, "export", "--out", str(file))
    assert json.loads(lightloom(controller, "diff", "-f", str(file), "-o", "json"))["moves"] == []

    lightloom(controller, "move", f"{one}=as1", f"{other}=as0", "--yes")
    swapped = {**before, one: "as1", other: "as0"}
    _is_there(controller, swapped, pair)
    until(lambda: reaches("pair", peer))

    shown = json.loads(lightloom(controller, "diff", "-f", str(file), "-o", "json", code=3))
    assert {move["endpoint"]: move["to"] for move in shown["moves"]} == {one: "as0", other: "as1"}
    lightloom(controller, "import", "-f", str(file), "--dry-run")
    _is_there(controller, swapped, pair)

    lightloom(controller, "import", "-f", str(file), "--yes")
    _is_there(controller, before, pair)
    until(lambda: reaches("pair", peer))
    assert json.loads(lightloom(controller, "diff", "-f", str(file), "-o", "json"))["moves"] == []


def _is_there(controller: Controller, wanted: dict[str, str], pair: dict[str, str]) -> None:
    """The intent, the switch's circuits and the aggregators' flows all say the same."""
    assert homes(controller) == wanted
    assert lit(controller) == wanted
    assert admitted(pair) == {a: {e for e in pair if wanted[e] == a} for a in ("as0", "as1")}
