"""Watches the running containers: notices their end and measures them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from base import clock
from container_mgr.hardware.nvml import GpuReadings as GpuReading
from container_mgr.kernel import freezer, inside
from container_mgr.kernel.cgroup import CgroupUsage, Gauge, locate
from container_mgr.kernel.freezer import Freezer
from container_mgr.kernel.process import open_first
from container_mgr.values import NIC_IN_CONTAINER, Container
from readings.reading import Value, Values

_NET = "/sys/class/net"

_log = structlog.get_logger("container_mgr.ranks.living")


@dataclass(slots=True)
class LiveContainer:
    """One running container. Belongs to the event loop."""

    container: Container
    pidfd: int
    gauge: Gauge | None
    freezer: Freezer | None = None
    """None when it cannot be written; then the engine pauses the container."""
    frozen_by_us: bool = False
    """The agent froze it, which the engine does not show."""
    ending: bool = False
    """It is being stopped and must not be frozen."""
    last: CgroupUsage | None = None
    last_ns: int = 0
    share_applied: bool = False
    oom: bool = False
    """The kernel killed one of its processes for lack of memory."""
    light_seen: bytes = b""
    """``carrier_changes`` of its NIC when it last had light."""

    def check_oom(self) -> None:
        """Read it from the cgroup, which outlives the last process by some milliseconds.

        Engines get two events, of the kill and of the end; when the second arrives first they
        never report the kill.
        """
        if self.gauge is not None and not self.oom:
            with suppress(OSError, ValueError):
                self.oom = self.gauge.oom_kills() > 0

    def carrier(self, proc: Path = Path("/proc")) -> bool | None:
        """Return whether the NIC has a carrier; None without a NIC, or when it is set down.

        Reads the container's sysfs: a mount of sysfs shows the namespace that it was made in.
        """
        try:
            light = inside.read(self.container.pid, _NET, f"{NIC_IN_CONTAINER}/carrier", 1, proc)
        except OSError:
            return None
        return {b"1": True, b"0": False}.get(light)

    def light_came_back(self, proc: Path = Path("/proc")) -> bool:
        """Return, once after every change, whether the NIC has got a carrier."""
        if not self.carrier(proc):
            return False
        try:
            changes = inside.read(
                self.container.pid, _NET, f"{NIC_IN_CONTAINER}/carrier_changes", 32, proc
            )
        except OSError:
            return False
        if changes == self.light_seen:
            return False
        self.light_seen = changes
        return True


@dataclass(slots=True, frozen=True)
class LiveSample:
    """One second of one rank. For a stand-in, utilisation is that of its CPU share."""

    container: Container
    values: Values
    """Its readings, and those of its GPU."""
    real: bool = False
    """NVML reads its GPU; else a CPU share stands in for one."""


@dataclass(slots=True)
class Living:
    """The running containers by name. Calls ``on_end`` in the loop when a first process exits.

    A pidfd reports the end at once, also while the engine hangs (pidfd_open(2)).
    """

    on_end: Callable[[Container, bool], None]
    """Called with the container, and whether it ran out of memory."""
    proc: Path = Path("/proc")
    _containers: dict[str, LiveContainer] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self._containers

    def __iter__(self) -> Iterator[LiveContainer]:
        return iter(tuple(self._containers.values()))

    def get(self, name: str) -> LiveContainer | None:
        """Return a running container by name."""
        return self._containers.get(name)

    def add(self, container: Container) -> None:
        """Watch a running container; one whose process is already gone is reported as ended."""
        name = container.key.container
        if name in self._containers:
            return
        try:
            pidfd = open_first(container, self.proc)
        except ProcessLookupError:
            self.on_end(container, False)
            return
        try:
            gauge = locate(container.pid)
        except (OSError, LookupError):
            gauge = None
        self._containers[name] = LiveContainer(
            container,
            pidfd,
            gauge,
            _freezer(container),
            share_applied=container.share_applied,
        )
        asyncio.get_running_loop().add_reader(pidfd, self._ended, name)

    def forget(self, name: str) -> None:
        """Stop watching."""
        live = self._containers.pop(name, None)
        if live is not None:
            asyncio.get_running_loop().remove_reader(live.pidfd)
            os.close(live.pidfd)

    def clear(self) -> None:
        """Stop watching all containers; they keep running."""
        for name in tuple(self._containers):
            self.forget(name)

    def sample(self, reading_of: Callable[[str], GpuReading | None]) -> list[LiveSample]:
        """Measure every container with a GPU, or with a stand-in since the last call."""
        now = round(clock.monotonic() * 1e9)
        found = []
        for live in self:
            live.check_oom()
            share = live.container.share
            gpu = reading_of(live.container.gpu_uuid)
            if gpu is not None:
                found.append(LiveSample(live.container, gpu.values, real=True))
            if share is None or live.gauge is None:
                continue
            with suppress(OSError, ValueError):
                reading = live.gauge.read()
                values: dict[str, Value] = {"memory_bytes": reading.memory_bytes}
                if live.last is not None and now > live.last_ns:
                    used = reading.cpu_ns - live.last.cpu_ns
                    # A program can use more than its share before the share applies.
                    busy = used / (now - live.last_ns) / share
                    values["utilisation"] = min(1.0, max(0.0, busy))
                live.last, live.last_ns = reading, now
                found.append(LiveSample(live.container, values))
        return found

    def _ended(self, name: str) -> None:
        live = self._containers.get(name)
        if live is not None:
            live.check_oom()
            self.forget(name)
            self.on_end(live.container, live.oom)


def _freezer(container: Container) -> Freezer | None:
    try:
        return freezer.find(container.id, container.pid)
    except OSError:  # it has ended
        return None
    except LookupError as error:
        _log.warning(
            "slower freeze: the engine pauses this one",
            container=container.key.container,
            reason=str(error),
        )
        return None
