"""Windows of the profiler of real TensorFlow trainings, recorded in full."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

import pytest

from testbed import rack
from testbed.demo import PAPER_SITE
from testbed.demo.api import Controller, Document
from tests.integration import waiting

pytestmark = [pytest.mark.root, pytest.mark.training, pytest.mark.timeout(600)]

RUN_DIR = Path("/run/lightloom/test-tf-windows")
LIMIT_S = 280.0
BATCH = 32
GRADIENT_BYTES = 4 * 1_022_170
PROFILES_ITSELF = """
import time
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
gradients = tf.zeros(1_000_000)
@tf.function
def step():
    def reduced():
        return tf.distribute.get_replica_context().all_reduce("sum", gradients)
    return strategy.run(reduced)
step()
tf.profiler.experimental.start("/tmp/own")
print("profiles", flush=True)
while True:
    step()
    time.sleep(0.5)
"""


@pytest.fixture
def on_rack() -> Iterator[tuple[Controller, str]]:
    status = rack.up(PAPER_SITE, RUN_DIR, progress=lambda line: None)
    try:
        with Controller(status.url) as made:
            yield made, status.image
    finally:
        rack.down(RUN_DIR, progress=lambda line: None)


until = partial(waiting.until, limit_s=LIMIT_S, pause_s=0.5)


def steps(controller: Controller, job: str) -> list[Document]:
    texts = [text for rank, text in controller.logs(job, follow=False) if rank == 0]
    lines = [json.loads(text) for text in texts if text.startswith("{")]
    return [line for line in lines if line.get("event") == "step"]


def told(controller: Controller, job: str) -> str:
    """What the job and its ranks' last lines say of how it failed."""
    lines = [f"{rank}: {text}" for rank, text in controller.logs(job, follow=False)]
    return "\n".join([json.dumps(controller.get(f"/jobs/{job}")), *lines[-100:]])


def test_windows_of_a_training_and_of_one_that_profiles_itself(
    on_rack: tuple[Controller, str],
) -> None:
    controller, image = on_rack
    common = {"count": 2, "image": image, "record": "full"}
    trainer = ("python3", "-m", "testbed.trainer", "--samples", str(10_000 * BATCH))
    training = {
        **common,
        "name": "full",
        "endpoints": ["gpu0", "gpu2"],
        "command": [*trainer, "--global-batch", str(BATCH)],
    }
    controller.post("/jobs", training)
    program = ["python3", "-c", PROFILES_ITSELF]
    selfish = {**common, "name": "own", "endpoints": ["gpu1", "gpu3"], "command": program}
    controller.post("/jobs", selfish)

    def comms(job: str) -> Callable[[], Document]:
        def ask() -> Document:
            view: Document = controller.get(f"/jobs/{job}/comms")
            assert view["state"] != "failed", told(controller, job)
            return view

        return ask

    # The one that profiles itself goes on, and is not asked again.
    refused = until(comms("own"), lambda v: all(r["recorder"] == "refused" for r in v["ranks"]))
    assert "profiles itself" in refused["ranks"][0]["reason"]
    assert controller.get("/jobs/own")["state"] == "running"
    controller.post("/jobs/own/cancel", {})

    # A window without a neighbour: the trainer's own lines say what it must have seen. What the
    # wire said while the neighbour trained is replaced within a minute.
    def alone(view: Document) -> bool:
        seen = view["overlap"]
        if not seen or seen["source"] != "tf" or not view["rows"]:
            return False
        return bool(seen["bytes_per_step"] == pytest.approx(GRADIENT_BYTES, rel=0.3))

    view = until(comms("full"), alone)
    (row,) = [row for row in view["rows"] if row["op"] == "all_reduce"]
    assert (row["source"], row["timing"], row["exact"], row["bytes"]) == ("tf", "host", True, 0)
    assert 0 < row["coverage"] < 0.2
    assert row["busbw"] is None
    assert {rank["recorder"] for rank in view["ranks"]} == {"recording"}
    printed = steps(controller, "full")
    overlap = view["overlap"]
    shortest, longest = (f(line["step_s"] for line in printed[3:]) for f in (min, max))
    assert shortest / 2 <= overlap["step_s"] <= longest
    # The all-reduce alone is a part of what the trainer sees of it.
    assert overlap["comm_s"] <= max(line["comm_s"] for line in printed)
    assert overlap["definition"] == "timeline"
    assert overlap["overlap"] <= 0.2, "by construction nothing is computed meanwhile"
    assert overlap["calls_per_step"] == 1
    before = len(printed)
    until(lambda: {"steps": len(steps(controller, "full"))}, lambda v: v["steps"] > before + 3)
    print(overlap, row, median(line["step_s"] for line in printed[3:]))

    # What was seen of a job that has ended stays, with its refusal.
    controller.post("/jobs/full/cancel", {})
    until(lambda: controller.get("/jobs/full"), lambda job: job["state"] == "cancelled")
    assert any(row["source"] == "tf" for row in comms("full")()["rows"])
    assert {rank["recorder"] for rank in comms("own")()["ranks"]} == {"refused"}
