"""The devices of this server that ranks can use: its endpoints' GPUs, NICs and RDMA devices."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from container_mgr.hardware import gpu_binding, server
from container_mgr.hardware import sysfs as hardware
from container_mgr.hardware.gpu_binding import GpuBinding
from container_mgr.hardware.gpus import Gpus
from container_mgr.hardware.jobmap import JobMap
from container_mgr.hardware.nvml import GpuReadings
from container_mgr.hardware.rdma import RdmaBinding
from container_mgr.values import (
    AgentError,
    Attach,
    Container,
    Health,
    ServedEndpoint,
    ServerFacts,
    Unfit,
)
from readings.reading import Values

LOOK_S = 1.0
"""For a GPU to be read after its rank has ended; a driver that hangs is seen as that later."""
_POLL_S = 0.005


class Inventory:
    """Finds each rank's devices and reports which of them work. Never blocks for long.

    ``endpoints`` None serves every NIC in the server's own network namespace: an emulated
    server has nothing else in it.
    """

    def __init__(
        self,
        endpoints: Mapping[str, ServedEndpoint] | None,
        facts: ServerFacts,
        *,
        gpus: Gpus | None = None,
        cdi: frozenset[str] = frozenset(),
        job_map: Path | None = None,
        digest_only: bool = False,
        registries: Collection[str] = (),
        sysfs: Path = hardware.SYSFS,
        dev: Path = Path("/dev"),
        proc: Path = Path("/proc"),
    ) -> None:
        self.endpoints = endpoints
        self.facts = facts
        self.digest_only = digest_only
        self.registries = tuple(registries)
        self._gpus = gpus
        self._cdi = cdi
        self._job_map = job_map
        self._sysfs = sysfs
        self._dev = dev
        self._proc = proc
        self._looked: dict[str, str] = {}
        """By endpoint: the container after whose end its GPU was read."""

    def attach(self, endpoint: str) -> Attach:
        """Return how an endpoint's NIC gets into its container."""
        served = (self.endpoints or {}).get(endpoint)
        return served.attach if served else Attach.MOVE

    def gpu(self, uuid: str) -> GpuBinding | None:
        """Return the binding of a rank's GPU; None for a rank without one."""
        if not uuid:
            return None
        minor = self._gpus.minor(uuid) if self._gpus else None
        return gpu_binding.choose(uuid, cdi_devices=self._cdi, minor=minor, dev=self._dev)

    def rdma(self, nic: str) -> RdmaBinding | None:
        """Return the RDMA device of an interface; None when a container cannot have it alone."""
        if not hardware.exclusive_rdma(self._sysfs):
            return None
        for device in hardware.rdma_devices(self._sysfs):
            if nic in device.nics and device.uverbs:
                return RdmaBinding(device.name, hardware.rdma_nodes(device))
        return None

    def nic(self, name: str) -> hardware.Nic | None:
        """Return what sysfs says about an interface."""
        return hardware.nic(name, self._sysfs)

    def health(self, carriers: Mapping[str, bool]) -> list[Health]:
        """Return the health of every endpoint, and of those whose carrier is known.

        ``carriers`` says whether the NICs of running ranks have one, by endpoint.
        """
        names = dict.fromkeys((*(self.endpoints or ()), *carriers))
        return [Health(name, self.unfit(name), carriers.get(name)) for name in names]

    async def look_after(self, ended: Mapping[str, str]) -> None:
        """Read the GPUs of ranks that have ended, once each; ``ended`` are containers by endpoint.

        So the word on a rank's end comes with a word on its GPU that is newer.
        """
        fresh = {e: c for e, c in ended.items() if self._looked.get(e) != c}
        self._looked = dict(ended)
        if self._gpus is None or not fresh:
            return
        uuids = [served.watched for e in fresh if (served := (self.endpoints or {}).get(e))]
        since = {uuid: self._gpus.request_read(uuid) for uuid in uuids if uuid}
        for _ in range(round(LOOK_S / _POLL_S)):
            if all(self._gpus.is_read(uuid, at) for uuid, at in since.items()):
                return
            await asyncio.sleep(_POLL_S)

    def unfit(self, endpoint: str) -> Unfit | None:
        """Return what is wrong with an endpoint's GPU; None when nothing is, or without a GPU."""
        served = (self.endpoints or {}).get(endpoint)
        uuid = served.watched if served else ""
        return self._gpus.unfit(uuid) if uuid and self._gpus else None

    def reading(self, uuid: str) -> GpuReadings | None:
        """Return a GPU's recent figures."""
        return self._gpus.reading(uuid) if uuid and self._gpus else None

    def server(self) -> Values:
        """Return the readings of this server."""
        return server.read(self._proc)

    def check_free(self, endpoint: str, uuid: str, obj: str) -> None:
        """Raise AgentError when an endpoint does not work or another process uses its GPU."""
        unfit = self.unfit(endpoint)
        if unfit is not None:
            raise AgentError(
                "unavailable",
                obj,
                f"{uuid or endpoint}: {unfit.reason}",
                "see nvidia-smi and the kernel's log",
            )
        reading = self.reading(uuid)
        foreign = [pid for pid in (reading.pids if reading else ()) if self._lives(pid)]
        if foreign:
            raise AgentError(
                "conflict",
                obj,
                f"{uuid} is used by process {foreign[0]} ({self._program(foreign[0])})",
                "end it, or remove this GPU from the site file",
            )

    def map_jobs(self, living: Collection[Container]) -> None:
        """Tell dcgm-exporter which job uses which GPU. OSError when that cannot be written."""
        if self._job_map is not None and self._gpus is not None:
            jobs = {c.gpu_uuid: c.key.job for c in living if c.gpu_uuid}
            JobMap(self._job_map, self._gpus.indices()).write(jobs)

    def _lives(self, pid: int) -> bool:
        return (self._proc / str(pid)).exists()

    def _program(self, pid: int) -> str:
        with suppress(OSError):
            return (self._proc / str(pid) / "comm").read_text(encoding="utf-8").strip()
        return "?"


def server_facts(memory_bytes: int, rank_memory_bytes: int = 0) -> ServerFacts:
    """Return this machine's cores, its memory as the engine reports it, and the most of a rank."""
    return ServerFacts(os.cpu_count() or 1, memory_bytes, rank_memory_bytes)
