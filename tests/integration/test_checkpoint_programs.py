"""Programs of three frameworks, unchanged but for their folder, go on after a lost GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import testbed
from controller.schema.submit.file import load_job
from testbed import rack
from testbed.demo.api import Controller, Document
from testbed.demo.errors import DemoError
from testbed.engine import EngineInfo
from testbed.image.torch import ensure_torch_image
from tests.integration.racks import rack_of
from tests.integration.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.soak, pytest.mark.timeout(900)]

SITE = Path(testbed.__file__).parent / "sites" / "spare.yaml"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RUN_DIR = Path("/run/lightloom/test-programs")
ENDED = frozenset({"completed", "failed", "cancelled"})
TRAINS_S, ENDS_S, WHOLE_S = 240.0, 600.0, 120.0


@pytest.fixture(scope="module")
def controller() -> Iterator[Controller]:
    with rack_of(SITE, RUN_DIR) as status:
        ensure_torch_image(EngineInfo(status.docker_host, status.docker_private))
        with Controller(status.url) as made:
            yield made


@pytest.fixture(autouse=True)
def whole(controller: Controller) -> Iterator[None]:
    yield
    for lost in rack.status(RUN_DIR).lost:
        rack.repair(lost, RUN_DIR)
    until(lambda: controller.get("/health"), lambda h: h["status"] == "ok", limit_s=WHOLE_S)


def printed(controller: Controller, job: str) -> list[Document]:
    """Return what rank 0 printed in the present or last run; nothing before the first."""
    lines: list[Document] = []
    with suppress(DemoError):
        for _, text in controller.logs(job, follow=False, rank=0):
            with suppress(ValueError):
                document: dict[str, Any] = json.loads(text)
                lines.append(document)
    return lines


def runs(lines: list[Document]) -> list[list[Document]]:
    found: list[list[Document]] = []
    for line in lines:
        if line["event"] == "start":
            found.append([])
        if found:
            found[-1].append(line)
    return found


def trained(controller: Controller, request: Document, *, lose: bool) -> list[list[Document]]:
    """Run a job; lose the GPU of its last rank once a step after the first is restorable."""
    name: str = controller.post("/jobs", request)["name"]
    if lose:
        until(
            lambda: controller.get(f"/jobs/{name}/checkpoints"),
            lambda view: view["restore_step"],
            limit_s=TRAINS_S,
            pause_s=0.3,
        )
        rack.lose(controller.get(f"/jobs/{name}")["endpoints"][-1], RUN_DIR)
    until(
        lambda: controller.get(f"/jobs/{name}"),
        lambda job: job["state"] in ENDED,
        limit_s=ENDS_S,
        pause_s=0.5,
    )
    job, lines = controller.get(f"/jobs/{name}"), printed(controller, name)
    assert job["state"] == "completed", (job["reason"], lines[-5:])
    if lose:
        recoveries = controller.get(f"/jobs/{name}/recoveries")["recoveries"]
        assert len(recoveries) == 1, recoveries
        (recovery,) = recoveries
        assert recovery["how"] == "swap", recovery["why"]
        assert recovery["step_restored"]
    return runs(lines)


def pair(controller: Controller, example: str, *words: str) -> tuple[list[Any], list[Any]]:
    """Return the runs of an example that was left alone, and of one that lost a GPU."""
    request = load_job(EXAMPLES / example)
    request["command"] = [*request["command"][:2], *words]
    found = []
    for lose in (False, True):
        body = {**request, "name": f"{request['name']}-{'lost' if lose else 'still'}"}
        found.append(trained(controller, body, lose=lose))
    return found[0], found[1]


def test_torch_save_and_rename(controller: Controller) -> None:
    words = ("--steps", "60", "--batch", "8", "--width", "0.125", "--checkpoint-every", "5")
    still, lost = pair(controller, "torch_checkpoint.yaml", *words)
    assert (len(still), len(lost)) == (1, 1)
    assert lost[0][0]["step"] > 0, "it went on where it was"
    assert lost[0][-1]["weights"] == still[0][-1]["weights"], "bit by bit the same training"
    assert lost[0][-1]["loss"] == still[0][-1]["loss"]


def test_distributed_checkpoints_of_torch(controller: Controller) -> None:
    """The ranks write one checkpoint beside the training; each loads from the parts of all."""
    words = ("--steps", "100", "--batch", "8", "--width", "0.125", "--checkpoint-every", "10")
    still, lost = pair(controller, "torch_dcp.yaml", *words)
    assert (len(still), len(lost)) == (1, 1)
    assert lost[0][0]["step"] > 0, "it went on where it was"
    assert lost[0][-1]["weights"] == still[0][-1]["weights"], "bit by bit the same training"
    assert lost[0][-1]["loss"] == still[0][-1]["loss"]


def test_keras_backup_and_restore(controller: Controller) -> None:
    still, lost = pair(controller, "keras_backup.yaml", "--epochs", "12", "--images", "1024")
    assert (len(still), len(lost)) == (1, 1)
    first = next(line["epoch"] for line in lost[0] if line["event"] == "epoch")
    assert first > 0
    assert lost[0][-1]["weights"] == still[0][-1]["weights"]
    assert lost[0][-1]["loss"] == still[0][-1]["loss"]
