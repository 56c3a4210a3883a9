"""A job with two ranks, and recordings of its calls."""

from __future__ import annotations

from dataclasses import replace

from agentlink.values import Record
from controller.devices.engine import Recording
from controller.state.records import JobRecord, JobSpec
from tests.parts.controller.comms import MB
from tests.parts.measure.recordings import recording

JOB = JobRecord(
    "red",
    JobSpec(count=2, record=Record.COUNTS),
    "image:1",
    1.0,
    "running",
    endpoints=("gpu0", "gpu1"),
    epoch=1,
)


def counted(calls: int, rank: int = 0, **fields: object) -> Recording:
    made = recording([(MB, k, k + 0.1) for k in range(calls)], rank=rank)
    return replace(made, **fields)  # type: ignore[arg-type]
