"""The rank that the tests of the engine start."""

from __future__ import annotations

from controller.devices.engine import RankSpec

SPEC = RankSpec(
    job="red",
    rank=0,
    epoch=1,
    endpoint="gpu0",
    server="srv0",
    image="x",
    command=("true",),
    ip="10.77.0.1",
    prefix_len=24,
    mac="02:77:00:00:00:01",
    nic="e-gpu0",
)
