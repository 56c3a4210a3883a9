"""The examples train as their job files say: through a live regroup, and from volumes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from controller.schema.submit.file import load_job
from testbed.demo.api import Controller, Document
from testbed.image.torch import LATEST

pytestmark = [pytest.mark.root, pytest.mark.soak, pytest.mark.timeout(900)]

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
TORCH, TENSORFLOW = ("gpu0", "gpu2"), ("gpu1", "gpu3")
"""Both scattered over both aggregators: to compact one is to compact the other."""
STEPS, REGROUP_AFTER = 30, 4
FIRST_STEPS, IMAGES = 6, 4096
TRAINS_S, MOMENT_S = 240.0, 60.0


def submit(
    controller: Controller, example: str, endpoints: tuple[str, ...], count: int = STEPS
) -> str:
    """Submit an example's job file with fewer steps, where the test wants it."""
    request = load_job(EXAMPLES / example)
    request["endpoints"] = list(endpoints)
    *command, steps = request["command"]
    assert (command[-1], steps) == ("--steps", "200")
    request["command"] = [*command, str(count), "--batch", "16", "--width", "0.125"]
    name: str = controller.post("/jobs", request)["name"]
    return await_state(controller, name, {"pending", "starting"})


def await_state(controller: Controller, job: str, before: set[str]) -> str:
    """Return when a job has left the states ``before``."""
    deadline = time.monotonic() + MOMENT_S
    while (view := controller.get(f"/jobs/{job}"))["state"] in before:
        assert time.monotonic() < deadline, (view["state"], view["reason"])
        time.sleep(0.2)
    return job


def output(controller: Controller, job: str, training: Event | None = None) -> list[Document]:
    """Return what a job printed; set ``training`` when it has trained some steps."""
    lines: list[Document] = []
    seen: list[str] = []
    for rank, text in controller.logs(job, follow=True):
        seen.append(text)
        if text.startswith("{"):
            line: dict[str, Any] = json.loads(text)
            lines.append(line | {"rank": rank})
            if training is not None and line.get("step") == REGROUP_AFTER:
                training.set()
    view = controller.get(f"/jobs/{await_state(controller, job, {'running'})}")
    assert view["state"] == "completed", (view["reason"], seen[-20:])
    return lines


def left_by(controller: Controller, project: str) -> bool:
    """Say whether the list of volumes shows what a project left, in use by no job."""
    data = [part for view in controller.get("/volumes")["items"] for part in view["data"]]
    return any(part["project"] == project and not part["used_by"] for part in data)


def learned(lines: list[Document]) -> None:
    losses = [line["loss"] for line in lines if line["event"] == "step"]
    assert len(losses) == STEPS
    assert sum(losses[-5:]) < sum(losses[:5])


def test_both_frameworks_train_and_one_rides_through_a_regroup(controller: Controller) -> None:
    torch = submit(controller, "torch_ddp.yaml", TORCH)
    tensorflow = submit(controller, "tf_vgg16.yaml", TENSORFLOW)
    assert controller.get(f"/jobs/{torch}")["image"] == LATEST
    training = Event()
    with ThreadPoolExecutor(max_workers=2) as readers:
        torch_read = readers.submit(output, controller, torch, training)
        tensorflow_read = readers.submit(output, controller, tensorflow)
        assert training.wait(TRAINS_S), "PyTorch does not train"
        plan = controller.post("/plans", {})
        assert plan["excess_span_before"] > 0
        done = controller.post("/transactions", {"plan": plan}, wait_s=60)
        assert done["state"] == "committed"
        assert set(done["jobs"]) >= {torch}
        torch_lines, tensorflow_lines = torch_read.result(), tensorflow_read.result()

    for name, lines in ((torch, torch_lines), (tensorflow, tensorflow_lines)):
        learned(lines)
        view = controller.get(f"/jobs/{name}")
        assert view["restarts"] == 0
        assert view["exit_codes"] == [0, 0]
        ends = [line for line in lines if line["event"] == "end"]
        assert sorted(line["rank"] for line in ends) == [0, 1]
        # Every rank holds the same weights at the end: no gradient was lost in the dark.
        assert len({line["weights"] for line in ends}) == 1

    starts = [line for line in torch_lines if line["event"] == "start"]
    assert {(line["backend"], line["ranks"]) for line in starts} == {("gloo", 2)}
    moved = {move["endpoint"] for move in done["moves"]}
    assert moved & set(TORCH)
    ranks = controller.get(f"/jobs/{torch}")["ranks"]
    assert all(rank["dark_time_s"] > 0 for rank in ranks if rank["endpoint"] in moved)


def test_both_frameworks_read_a_data_set_and_continue_from_their_checkpoints(
    controller: Controller, volumes: Path
) -> None:
    """A volume has the data, another one keeps the checkpoint for a job of the same project."""
    images = volumes / "images"
    make = [sys.executable, str(EXAMPLES / "make_images.py"), str(images), "--images", str(IMAGES)]
    subprocess.run(make, check=True, timeout=60)

    def run(example: str, endpoints: tuple[str, ...], count: int) -> list[Document]:
        return output(controller, submit(controller, example, endpoints, count))

    for first, count in ((0, FIRST_STEPS), (FIRST_STEPS, 2 * FIRST_STEPS)):
        with ThreadPoolExecutor(max_workers=2) as runs:
            found = [
                runs.submit(run, "torch_volume.yaml", TORCH, count),
                runs.submit(run, "tf_volume.yaml", TENSORFLOW, count),
            ]
            for lines in (future.result() for future in found):
                starts = [line["step"] for line in lines if line["event"] == "start"]
                steps = [line["step"] for line in lines if line["event"] == "step"]
                assert set(starts) == {first}
                assert steps == list(range(first, count))
                assert [line["step"] for line in lines if line["event"] == "checkpoint"] == [
                    count - 1
                ]
                ends = [line["weights"] for line in lines if line["event"] == "end"]
                assert len(ends) == 2
                assert len(set(ends)) == 1

    results = volumes / "results" / "projects" / "default"
    assert (results / "torch.pt").stat().st_uid != 0
    deadline = time.monotonic() + MOMENT_S
    while not left_by(controller, "default"):  # the agents are asked now and then
        assert time.monotonic() < deadline
        time.sleep(0.5)
