"""Moves an RDMA device to a container's network namespace and back.

Only in exclusive mode (``rdma system set netns exclusive``) does a device belong to one
namespace. In shared mode every container could use every device, so no container gets one.
When a namespace ends, the kernel returns its devices to the machine's own.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from base import clock
from container_mgr.hardware import sysfs as hardware
from container_mgr.values import AgentError

_TIMEOUT_S = 10
_GID_WAIT_S = 1.0
_CONFIGFS = Path("/sys/kernel/config/rdma_cm")

Run = Callable[[Sequence[str]], str]


def run_tool(arguments: Sequence[str]) -> str:
    """Run iproute2's ``rdma`` in this thread's namespace. AgentError(failed) with its message."""
    try:
        done = subprocess.run(
            ["rdma", *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        raise AgentError(
            "failed", "rdma", "the program is not installed", "apt-get install iproute2"
        ) from None
    except subprocess.TimeoutExpired:
        raise AgentError("timeout", "rdma", f"no answer within {_TIMEOUT_S} s") from None
    if done.returncode != 0:
        raise AgentError("failed", "rdma", f"{' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def move(device: str, target: Path, run: Run = run_tool) -> None:
    """Move a device from this thread's namespace to the one at ``target``."""
    run(["dev", "set", device, "netns", str(target)])


def own_devices(run: Run = run_tool, sysfs: Path = hardware.SYSFS) -> list[str]:
    """Return the RDMA devices of this thread's namespace; in shared mode none belongs to one."""
    if not hardware.exclusive_rdma(sysfs):
        return []
    listed = json.loads(run(["-j", "dev"]) or "[]")
    return [str(device["ifname"]) for device in listed]


def wait_for_gid(device: str, ip: str, sysfs: Path, wait_s: float = _GID_WAIT_S) -> int | None:
    """Return the index of the RoCEv2 GID of ``ip``, which the kernel adds just after the address.

    ``sysfs`` is the tree that the container sees. None without a GID after ``wait_s``.
    """
    deadline = clock.monotonic() + wait_s
    while True:
        index = hardware.gid_index(hardware.gids(device, sysfs), ip)
        if index is not None or clock.monotonic() > deadline:
            return index
        clock.sleep(0.02)


def set_dscp(device: str, dscp: int, configfs: Path = _CONFIGFS) -> None:
    """Make connections of the RDMA connection manager on ``device`` use ``dscp``.

    (Documentation/ABI/testing/configfs-rdma_cm; the program sets the class of other
    queue pairs, and gets it as ``NCCL_IB_TC``.)
    """
    with suppress(OSError):
        (configfs / device).mkdir(exist_ok=True)
        path = configfs / device / "ports/1/default_roce_tos"
        path.write_text(str(dscp << 2), encoding="ascii")


@dataclass(slots=True, frozen=True)
class RdmaBinding:
    """A rank's RDMA device, and the nodes below ``/dev`` that programs open to use it."""

    device: str
    nodes: tuple[str, ...]
