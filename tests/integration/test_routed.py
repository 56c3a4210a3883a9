"""Predicted rates over routed links against those of packets that Open vSwitch forwards.

Of four aggregators as0, as1 and as2 are a mesh; as1 is the centre of a star of the others, of which
as3 has no other way: as3 - as1 - as0 is a chain.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import mean

import pytest
import yaml

from controller.telemetry.steps import roads_of
from sitefile import load_site
from testbed import ring_steps
from testbed.demo import PAPER_SITE
from testbed.demo.api import Controller
from tests.integration import waiting
from tests.integration.racks import rack_of

pytestmark = [pytest.mark.root, pytest.mark.soak, pytest.mark.timeout(600)]

RUN_DIR = Path("/run/lightloom/test-routed")
BPS = 40e6
"""Of every fiber and every link: slow, so that what else runs on this machine does not matter."""
UPLINKS = (("as0/8", "as1/8"), ("as1/9", "as2/9"), ("as2/8", "as0/9"), ("as3/8", "as1/7"))
HOMES = {"gpu0": "as0", "gpu1": "as0", "gpu2": "as1", "gpu3": "as2", "gpu4": "as3", "gpu5": "as3"}
BYTES = 4_000_000
"""Of a step, 0.8 s alone: long enough for TCP to share a link fairly."""
WARM_S, WINDOW_S = 4.0, 12.0
"""Time in which TCP finds its rate, and in which steps are looked at."""
TOLERANCE = 0.3
"""Of the rate of two jobs together, relative to one alone: 1 where they share a link, else 2."""
SHARES = 0.8
"""Less than this of its rate alone is left to a job that shares a link."""
PROGRAM = ("python3", "-c", Path(ring_steps.__file__).read_text("utf-8"))

until = partial(waiting.until, limit_s=120.0, pause_s=0.2)


@pytest.fixture(scope="module")
def site_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The paper's site with two more aggregators, whose fibers lead to ports of their own."""
    text = yaml.safe_load(PAPER_SITE.read_text())
    text["aggregators"] += [{"name": "as2", "dpid": 0xA2}, {"name": "as3", "dpid": 0xA3}]
    text["fibers"] += [
        [f"{name}/{port}", f"ocs0/2.{shelf}.{port}"]
        for name, shelf in (("as2", 3), ("as3", 4))
        for port in range(1, 5)
    ]
    text["uplinks"], text["homes"] = [list(ends) for ends in UPLINKS], HOMES
    text["emulation"] |= {"access_bps": BPS, "inter_aggregator_bps": BPS}
    path = tmp_path_factory.mktemp("routed") / "site.yaml"
    path.write_text(yaml.safe_dump(text))
    return path


@pytest.fixture(scope="module")
def controller(site_file: Path) -> Iterator[Controller]:
    with rack_of(site_file, RUN_DIR) as status, Controller(status.url) as made:
        yield made


@pytest.mark.parametrize(
    ("near", "far", "rate"),
    [
        pytest.param(("gpu2", "gpu0"), ("gpu4", "gpu1"), 0.5, id="chain"),
        pytest.param(("gpu4", "gpu0"), ("gpu5", "gpu3"), 0.5, id="star"),
        pytest.param(("gpu0", "gpu2"), ("gpu1", "gpu3"), 1.0, id="mesh"),
    ],
)
def test_jobs_get_the_rates_that_are_predicted(
    controller: Controller,
    site_file: Path,
    near: tuple[str, str],
    far: tuple[str, str],
    rate: float,
) -> None:
    links = roads_of(load_site(site_file))
    assert links is not None
    rings = {"near": near, "far": far}
    assert links.rates({"near": near}, HOMES) == {"near": 1.0}
    assert links.rates(rings, HOMES) == pytest.approx({"near": rate, "far": rate})
    try:
        begin(controller, "near", near)
        (alone_s,) = step_s(controller, "near")
        begin(controller, "far", far)
        both = step_s(controller, *rings)
    finally:
        end(controller)
    found = {name: alone_s / took_s for name, took_s in zip(rings, both, strict=True)}
    # Without queues of their own TCP gives the ring over two links less than half: the two together
    # are what the link carries, and each has less than alone if and only if it shares one.
    assert sum(found.values()) == pytest.approx(2 * rate, abs=TOLERANCE), found
    assert all((one < SHARES) == (rate < SHARES) for one in found.values()), found


def begin(controller: Controller, name: str, endpoints: tuple[str, str]) -> None:
    """Start a ring that sends all the time."""
    request = {"name": name, "count": 2, "endpoints": list(endpoints)}
    controller.post("/jobs", request | {"command": [*PROGRAM, "0", str(BYTES), "1000000"]})
    until(lambda: controller.get(f"/jobs/{name}"), lambda job: job["state"] == "running")


def step_s(controller: Controller, *jobs: str) -> list[float]:
    """Return the mean step of each job, in the same time."""
    time.sleep(WARM_S)
    done = [len(steps(controller, name)) for name in jobs]
    time.sleep(WINDOW_S)
    return [mean(steps(controller, name)[before:]) for name, before in zip(jobs, done, strict=True)]


def steps(controller: Controller, name: str) -> list[float]:
    """Return how long rank 0's steps took, in seconds."""
    told = [json.loads(text) for _, text in controller.logs(name, follow=False, rank=0)]
    return [line["step_s"] for line in told if line["event"] == "step"]


def end(controller: Controller) -> None:
    for job in controller.items("/jobs"):
        if job["state"] not in ("cancelled", "completed", "failed"):
            controller.post(f"/jobs/{job['name']}/cancel", wait_s=60)
    until(lambda: controller.items("/containers"), lambda found: not found)
