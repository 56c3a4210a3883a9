"""A rank that the agent's rules admit."""

from __future__ import annotations

from pathlib import Path

from agentlink.ranks import RankKey, RankSpec
from agentlink.values import NicSpec
from container_mgr.values import Container

GOOD = RankSpec(
    key=RankKey("red", 0, 7),
    endpoint="gpu0",
    image="ll-trainer:0123456789ab",
    command=("python3", "-m", "testbed.trainer"),
    nic=NicSpec("e-gpu0", "10.77.0.1", 24, "02:77:00:00:00:01"),
    env={"TF_CONFIG": "{}"},
    emulated_share=0.25,
)
RUNNING = Container(
    id="c1" * 32,
    key=RankKey("red", 0, 1),
    endpoint="gpu0",
    digest="d",
    nic=NicSpec("e", "10.0.0.1", 24, "02:00:00:00:00:01"),
    share=None,
    state="running",
)
"""A container that the engine calls running."""
TLS = Path("/etc/lightloom/tls")
