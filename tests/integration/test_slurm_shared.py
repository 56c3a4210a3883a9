"""One site with endpoints of lightloom's own and of Slurm, whose jobs reach only themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.demo.errors import DemoError
from testbed.rack.slurm.config import UnderSlurm
from tests.integration.slurm.parts import Slurm, rack_under_slurm, until

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

RUN_DIR = Path("/run/lightloom/test-slurm-shared")
OWN = {"gpu0", "gpu1"}
KNOCK = (
    "ip neigh flush all; exec 3<>/dev/udp/$0/9; for _ in 1 2 3; do echo x >&3; sleep 0.3; done;"
    " ip neigh show $0 dev e0"
)


@pytest.fixture(scope="module")
def under_slurm() -> Iterator[Slurm]:
    with rack_under_slurm(RUN_DIR, UnderSlurm("job", ("gpu2", "gpu3", "gpu4", "gpu5"))) as made:
        yield made


@pytest.fixture
def slurm(under_slurm: Slurm) -> Iterator[Slurm]:
    yield under_slurm
    under_slurm.empty()


def reaches(slurm: Slurm, number: str, node: str, there: str) -> bool:
    """Whether a node of a running job reaches an endpoint over the light."""
    items = slurm.controller.items("/endpoints")
    address = next(e["ip"] for e in items if e["name"] == there)
    step = ("srun", f"--jobid={number}", "--overlap", "-N1", "-n1", "-w", node)
    printed = slurm(*step, "bash", "-c", KNOCK, address)
    return any(word in printed for word in ("REACHABLE", "DELAY", "STALE", "PROBE"))


def test_each_queue_gives_its_own_endpoints_only(slurm: Slurm) -> None:
    image = slurm.status.image
    body = {"name": "own", "count": 2, "image": image, "command": ["sleep", "600"]}
    slurm.controller.post("/jobs", body)
    own = until(
        lambda: slurm.controller.get("/jobs/own"), lambda found: found["state"] == "running"
    )
    try:
        assert set(own["endpoints"]) == OWN
        assert "gpu0" not in slurm("sinfo", "-h", "-N", "-o", "%N")
        number = slurm.submit("-N4", "--gres=gpu:1")
        running = slurm.running(number)
        assert not set(running["endpoints"]) & OWN
        with pytest.raises(DemoError):
            slurm.controller.post("/jobs", {**body, "name": "more", "count": 3})
    finally:
        slurm.controller.post("/jobs/own/cancel", {})
        until(lambda: slurm.controller.get("/jobs/own")["finished_at"], bool)


def test_a_job_reaches_its_own_endpoints_only(slurm: Slurm) -> None:
    first = slurm.submit("-N2", "--gres=gpu:1", "-w", "gpu2,gpu4")
    assert slurm.running(first)["span"] == 1
    second = slurm.submit("-N1", "--gres=gpu:1", "-w", "gpu3")
    slurm.running(second)
    assert reaches(slurm, first, "gpu2", "gpu4")
    for stranger in ("gpu3", "gpu5", "gpu0"):
        assert not reaches(slurm, first, "gpu2", stranger), stranger
    assert not reaches(slurm, second, "gpu3", "gpu2")
    slurm("scancel", second)
    until(slurm.job(second), lambda found: found["finished_at"])
    assert reaches(slurm, first, "gpu2", "gpu4")
