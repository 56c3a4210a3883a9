"""The rank that the tests of the engine start."""

from __future__ import annotations

from agentlink.ranks import RankKey, RankSpec
from agentlink.values import NicSpec

SPEC = RankSpec(
    key=RankKey("red", 0, 1),
    endpoint="gpu0",
    server="srv0",
    image="x",
    command=("true",),
    nic=NicSpec("e-gpu0", "10.77.0.1", 24, "02:77:00:00:00:01"),
)
