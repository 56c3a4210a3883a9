"""What lies under a volume, and what the server spends on it: device, processor time, blocks."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

WITHOUT_DEVICE = frozenset({"tmpfs", "ramfs", "overlay", "devtmpfs", "aufs", "squashfs", "rootfs"})
"""File systems without a block device or a server of their own: limits do nothing there."""
SECTOR = 512
"""Bytes of the kernel's unit in getrusage(2)."""
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(slots=True, frozen=True)
class DirectoryDevice:
    """What a directory lies on."""

    filesystem: str
    """Its type, such as ``ext4``; empty if it is not known."""
    number: str
    """``major:minor``; a major number of 0 is not a block device."""
    direct_loop: bool | None
    """Whether a loop device passes the server's page cache by; None for other devices."""

    @property
    def refusal(self) -> str:
        """Why nothing can be measured here; empty if it can."""
        if self.filesystem in WITHOUT_DEVICE:
            return f"{self.filesystem} has no block device: it is memory, and no limit holds on it"
        return ""


def device(directory: Path, *, mounts: Path = Path("/proc/self/mountinfo")) -> DirectoryDevice:
    """Return what ``directory`` lies on, by the mount with the longest path."""
    found, best = ("", ""), -1
    with contextlib.suppress(OSError):
        for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
            fields = line.split(" ")
            if "-" not in fields[6:] or len(fields) < 10:
                continue
            at = fields[4].replace("\\040", " ")
            kind = fields[fields.index("-", 6) + 1]
            if directory.is_relative_to(at) and len(at) >= best:
                found, best = (kind, fields[2]), len(at)
    return DirectoryDevice(found[0], found[1], _direct_loop(found[1]))


def _direct_loop(number: str) -> bool | None:
    with contextlib.suppress(OSError):
        return Path(f"/sys/dev/block/{number}/loop/dio").read_text().strip() == "1"
    return None


@dataclass(slots=True, frozen=True)
class Spent:
    """Counters at one moment. Seconds of processor time; bytes at the block layer."""

    at: float
    container_s: float | None
    """Processor time of this container, all processes."""
    server_s: float | None
    """Processor time of the whole server: interrupts and writeback count here only."""
    read_bytes: int
    """Processor time of this process and its ended children."""
    written_bytes: int


def spent() -> Spent:
    """Read the counters now."""
    own, children = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return Spent(
        time.monotonic(),
        _container_s(),
        _server_s(),
        (own.ru_inblock + children.ru_inblock) * SECTOR,
        (own.ru_oublock + children.ru_oublock) * SECTOR,
    )


def usage(before: Spent, after: Spent) -> dict[str, float | None]:
    """Return cores in use between two moments: ``container``, ``server``."""
    seconds = max(after.at - before.at, 1e-9)

    def cores(first: float | None, last: float | None) -> float | None:
        return None if first is None or last is None else max(last - first, 0.0) / seconds

    return {
        "container": cores(before.container_s, after.container_s),
        "server": cores(before.server_s, after.server_s),
    }


def _container_s() -> float | None:
    for name in ("cpuacct/cpuacct.usage", "cpu,cpuacct/cpuacct.usage"):  # cgroup v1
        with contextlib.suppress(OSError, ValueError):
            return int((_CGROUP / name).read_text()) / 1e9
    with contextlib.suppress(OSError, ValueError):
        for line in (_CGROUP / "cpu.stat").read_text().splitlines():  # v2
            if line.startswith("usage_usec "):
                return int(line.split()[1]) / 1e6
    return None


def _server_s() -> float | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
        user, nice, system, _, _, irq, soft = (int(field) for field in fields[1:8])
        return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")
    return None
