"""What `testbed lose` does to a running rack, what the controller sees of it, and the repair."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import testbed
from testbed import rack, ring
from testbed.demo.api import Controller, Document
from testbed.demo.errors import DemoError
from testbed.rack import procfs
from tests.integration.racks import rack_of
from tests.integration.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

SITE = Path(testbed.__file__).parent / "sites" / "spare.yaml"
RUN_DIR = Path("/run/lightloom/test-losses")
SEEN_S, WHOLE_S = 60.0, 120.0


@pytest.fixture(scope="module")
def controller() -> Iterator[Controller]:
    with rack_of(SITE, RUN_DIR) as status, Controller(status.url) as made:
        yield made


def endpoint(controller: Controller, name: str) -> Document:
    return next(one for one in controller.items("/endpoints") if one["name"] == name)


def connected(controller: Controller, device: str) -> bool:
    devices: list[Document] = controller.get("/health")["devices"]
    return next(bool(one["connected"]) for one in devices if one["name"] == device)


def lost_and_seen(controller: Controller, device: str) -> rack.LossChange:
    change = rack.lose(device, RUN_DIR)
    assert change.changed
    until(
        lambda: controller.get("/health"),
        lambda _: not connected(controller, device),
        limit_s=SEEN_S,
    )
    assert rack.status(RUN_DIR).lost == (device,)
    return change


def repaired(controller: Controller, device: str) -> None:
    assert rack.repair(device, RUN_DIR).changed
    assert not rack.repair(device, RUN_DIR).changed
    until(lambda: controller.get("/health"), lambda h: h["status"] == "ok", limit_s=WHOLE_S)
    assert rack.status(RUN_DIR).state == "up"


def start(controller: Controller, name: str, *endpoints: str) -> None:
    controller.post("/jobs", ring.request(name, endpoints))
    until(
        lambda: controller.get(f"/jobs/{name}"), lambda j: j["state"] == "running", limit_s=WHOLE_S
    )


def end(controller: Controller, name: str) -> None:
    with suppress(DemoError):  # it may have failed already, or fail right now
        controller.post(f"/jobs/{name}/cancel")
    until(
        lambda: controller.get("/containers"),
        lambda page: all(one["job"] != name for one in page["items"]),
        limit_s=WHOLE_S,
    )


def test_a_gpu_is_lost_by_nvml_and_its_rank_dies(controller: Controller) -> None:
    start(controller, "red", "gpu1", "gpu3")
    change = rack.lose("gpu3", RUN_DIR)
    assert change.killed
    assert not any(procfs.start_ticks(pid) for pid in change.killed)
    found = until(lambda: endpoint(controller, "gpu3"), lambda end: end["reason"], limit_s=SEEN_S)
    assert "the GPU is lost" in found["reason"]
    assert endpoint(controller, "gpu2")["reason"] == "", "its neighbour works"
    assert not rack.lose("gpu3", RUN_DIR).changed
    end(controller, "red")
    repaired(controller, "gpu3")
    until(
        lambda: endpoint(controller, "gpu3"),
        lambda end: end["state"] == "idle",
        limit_s=SEEN_S,
    )


def test_a_server_loses_power_with_all_that_runs_on_it(controller: Controller) -> None:
    start(controller, "blue", "gpu4", "gpu6")
    change = lost_and_seen(controller, "srv2")
    assert len(change.killed) > 1, "the agent and the rank"
    shown = subprocess.run(
        ["ip", "-n", "ll-srv2", "-br", "link"], capture_output=True, text=True, check=True
    ).stdout
    assert "e-gpu5" in shown
    assert "LOWER_UP" not in shown.replace("LOOPBACK,UP,LOWER_UP", ""), "its NICs are dark"
    repaired(controller, "srv2")
    end(controller, "blue")
    start(controller, "again", "gpu4", "gpu5")
    end(controller, "again")


@pytest.mark.parametrize("device", ["as1", "ocs0"])
def test_a_device_is_lost_and_traffic_flows_after_its_repair(
    controller: Controller, device: str
) -> None:
    lost_and_seen(controller, device)
    repaired(controller, device)
    name = f"after-{device}"
    start(controller, name, "gpu0", "gpu4")

    def received() -> Document:
        lines = ({"text": text} for _, text in controller.logs(name, follow=False))
        return {str(rank): seen.rx_bytes for rank, seen in ring.read(lines).items()}

    until(received, lambda ranks: len(ranks) == 2 and all(ranks.values()), limit_s=WHOLE_S)
    end(controller, name)
