"""The shell assignments about a NIC that the entry script reads."""

from __future__ import annotations

import subprocess

from agentlink.values import NicReport
from container_mgr.ranks.ranks import nic_assignments


def read(report: NicReport) -> dict[str, str]:
    """Return the variables as a shell sees them."""
    done = subprocess.run(
        ["sh", "-euc", nic_assignments(report) + "env"],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = dict(line.split("=", 1) for line in done.stdout.splitlines())
    return {name: value for name, value in found.items() if name.startswith(("NCCL_", "LIGHT"))}


def test_nccl_gets_the_device_its_gid_and_the_traffic_class() -> None:
    assert read(NicReport(mtu=4200, rdma_device="mlx5_3", gid_index=5, dscp=26)) == {
        "LIGHTLOOM_MTU": "4200",
        "NCCL_IB_HCA": "=mlx5_3",
        "NCCL_IB_GID_INDEX": "5",
        "NCCL_IB_TC": "104",
    }


def test_unknown_values_are_left_out() -> None:
    assert read(NicReport(mtu=1500)) == {"LIGHTLOOM_MTU": "1500"}
