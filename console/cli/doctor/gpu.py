"""Checks of a server's GPUs: driver, MIG, ECC, services, device nodes, GPUDirect."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from console.cli.doctor.access import MachineAccess
from console.cli.doctor.engine import driver_version
from console.cli.doctor.finding import Duty, Judged
from container_mgr.hardware import sysfs as hardware

_GPUS = "proc/driver/nvidia/gpus"
_PERSISTENCED, _FABRIC_MANAGER = "nvidia-persiste", "nv-fabricmanage"
"""The kernel keeps 15 characters of a process's name."""
DMA_BUF_SINCE = (5, 12)


@dataclass(slots=True, frozen=True)
class GpuState:
    """A GPU as the driver reports it. ``modes`` are MIG, ECC, persistence; None is unknown."""

    uuid: str
    pci: str
    node: str
    """Its name below ``/dev``."""
    numa: int | None
    modes: tuple[str, str, str] | None = None


@dataclass(slots=True, frozen=True)
class GpuReport:
    """What the server has of NVIDIA's parts."""

    driver: str = ""
    open_module: bool = False
    gpus: Mapping[str, GpuState] = field(default_factory=dict)
    """By UUID."""
    nodes: Mapping[str, int] = field(default_factory=dict)
    """Permissions of the device nodes that exist, by name below ``/dev``."""
    processes: frozenset[str] = frozenset()
    has_nvswitch: bool = False
    modules: frozenset[str] = frozenset()
    kernel: tuple[int, int] | None = None
    redirecting: tuple[str, ...] | None = None
    """PCI bridges whose access control sends peers' traffic to the root; None when unreadable."""
    nics: Mapping[str, tuple[str, int | None]] = field(default_factory=dict)
    """By name of each NIC of the site: its RDMA device and its NUMA node."""


def read_gpus(machine: MachineAccess, duty: Duty) -> GpuReport:
    """Read the driver's files, the device nodes, processes and bridges."""
    modes = _modes(machine)
    gpus = {}
    for pci in machine.names(_GPUS):
        lines = machine.text(f"{_GPUS}/{pci}/information").splitlines()
        said = {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        uuid = said.get("GPU UUID", "")
        node = f"nvidia{said['Device Minor']}" if "Device Minor" in said else ""
        gpus[uuid] = GpuState(uuid, pci, node, numa_node(machine, pci), modes.get(uuid))
    release = re.match(r"(\d+)\.(\d+)", machine.text("proc/sys/kernel/osrelease"))
    nics = {
        e.nic: (nic.rdma_device, numa_node(machine, nic.pci))
        for e in duty.endpoints
        if (nic := hardware.nic(e.nic, machine.at("sys"))) is not None
    }
    return GpuReport(
        driver=driver_version(machine),
        open_module="Open Kernel Module" in machine.text("proc/driver/nvidia/version"),
        gpus=gpus,
        nodes=_nodes(machine),
        processes=frozenset(machine.processes().values()),
        has_nvswitch=bool(machine.names("proc/driver/nvidia-nvswitch/devices")),
        modules=frozenset(machine.names("sys/module")),
        kernel=(int(release[1]), int(release[2])) if release else None,
        redirecting=_redirecting(machine),
        nics=nics,
    )


def numa_node(machine: MachineAccess, pci: str) -> int | None:
    """Return the NUMA node of a PCI device; None when the firmware does not say it."""
    with suppress(ValueError):
        node = int(machine.text(f"sys/bus/pci/devices/{pci.lower()}/numa_node"))
        return node if node >= 0 else None
    return None


def _modes(machine: MachineAccess) -> dict[str, tuple[str, str, str]]:
    asked = "uuid,mig.mode.current,ecc.mode.current,persistence_mode"
    text = machine.run(["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"]) or ""
    rows = [[word.strip() for word in line.split(",")] for line in text.splitlines()]
    return {row[0]: (row[1], row[2], row[3]) for row in rows if len(row) == 4}


def _nodes(machine: MachineAccess) -> dict[str, int]:
    found = {}
    for name in machine.names("dev"):
        if name.startswith("nvidia"):
            with suppress(OSError):
                found[name] = stat.S_IMODE(machine.at(f"dev/{name}").stat().st_mode)
    return found


def _redirecting(machine: MachineAccess) -> tuple[str, ...] | None:
    text = machine.run(["lspci", "-vvv"])
    if text is None or "ACSCtl:" not in text:
        return None
    devices = re.split(r"\n(?=\S)", text)
    bridges = [d for d in devices if "bridge" in d.partition("\n")[0]]
    return tuple(d.split(" ")[0] for d in bridges if re.search(r"ACSCtl:.*ReqRedir\+", d))


def _sought(duty: Duty) -> list[tuple[str, str]]:
    return [(e.name, e.gpu_uuid) for e in duty.endpoints if e.gpu_uuid]


def judge_driver(report: GpuReport, duty: Duty) -> Iterator[Judged]:
    """The driver is loaded, where the site has GPUs here."""
    if _sought(duty) or report.driver:
        said = f"{report.driver}, {len(report.gpus)} GPUs" if report.driver else "not loaded"
        yield Judged(bool(report.driver), said)


def judge_present(report: GpuReport, duty: Duty) -> Iterator[Judged]:
    """The driver reports each GPU of the site."""
    if report.driver:
        for name, uuid in _sought(duty):
            here = uuid in report.gpus
            yield Judged(here, f"{uuid} {'is here' if here else 'is not here'}", name)


def judge_mig(report: GpuReport, duty: Duty) -> Iterator[Judged]:
    """MIG is off: a program in a container finds no whole GPU otherwise."""
    yield from _judge_mode(report, duty, 0, bad="Enabled")


def judge_ecc(report: GpuReport, duty: Duty) -> Iterator[Judged]:
    """Memory errors are corrected, where the GPU can."""
    yield from _judge_mode(report, duty, 1, bad="Disabled")


def _judge_mode(report: GpuReport, duty: Duty, which: int, bad: str) -> Iterator[Judged]:
    for name, uuid in _sought(duty):
        gpu = report.gpus.get(uuid)
        if gpu is not None and gpu.modes is None:
            yield Judged(None, "nvidia-smi does not say it", name)
        elif gpu is not None and gpu.modes is not None:
            yield Judged(gpu.modes[which] != bad, gpu.modes[which], name)


def judge_persistence(report: GpuReport, _: Duty) -> Iterator[Judged]:
    """The driver stays ready between jobs, and makes its nodes without the agent."""
    if not report.gpus:
        return
    if _PERSISTENCED in report.processes:
        yield Judged(True, "nvidia-persistenced runs")
    elif all(gpu.modes is None for gpu in report.gpus.values()):
        yield Judged(None, "nvidia-persistenced does not run; the mode is not known")
    else:
        on = all(
            gpu.modes is not None and gpu.modes[2] == "Enabled" for gpu in report.gpus.values()
        )
        yield Judged(on, "mode on" if on else "neither nvidia-persistenced nor the mode")


def judge_fabric_manager(report: GpuReport, _: Duty) -> Iterator[Judged]:
    """Servers with NVSwitches run their manager: CUDA does not start without it."""
    if report.has_nvswitch:
        runs = _FABRIC_MANAGER in report.processes
        yield Judged(runs, "runs" if runs else "does not run, and this server has NVSwitches")


def judge_nodes(report: GpuReport, _: Duty) -> Iterator[Judged]:
    """All device nodes exist, and any user of a container may open them."""
    if not report.gpus:
        return
    needed = ["nvidiactl", "nvidia-uvm", *(g.node for g in report.gpus.values() if g.node)]
    absent = [name for name in needed if name not in report.nodes]
    closed = [name for name in needed if name not in absent and report.nodes[name] & 0o666 != 0o666]
    if absent:
        yield Judged(False, f"absent: {', '.join(absent)}")
    elif closed:
        fix = "NVreg_DeviceFileMode=0666 in /etc/modprobe.d, then load the driver again"
        yield Judged(False, f"not open to all: {', '.join(closed)}", fix=fix)
    else:
        yield Judged(True, ", ".join(needed))


def judge_gpudirect(report: GpuReport, _: Duty) -> Iterator[Judged]:
    """RDMA reaches a GPU's memory without a copy."""
    if not report.gpus or not any(device for device, _ in report.nics.values()):
        return
    if "nvidia_peermem" in report.modules:
        yield Judged(True, "nvidia_peermem is loaded")
    elif report.kernel is None:
        yield Judged(None, "nvidia_peermem is not loaded; the kernel's version is not known")
    elif report.open_module and report.kernel >= DMA_BUF_SINCE:
        yield Judged(True, "dma-buf, by the open kernel module")
    else:
        yield Judged(False, "neither nvidia_peermem nor dma-buf")


def judge_acs(report: GpuReport, _: Duty) -> Iterator[Judged]:
    """Bridges let a NIC and a GPU talk directly."""
    if not report.gpus or not any(device for device, _ in report.nics.values()):
        return
    if report.redirecting is None:
        yield Judged(None, "lspci does not say it; it needs root")
    else:
        few = ", ".join(report.redirecting[:4])
        yield Judged(not report.redirecting, f"redirected at {few}" if few else "direct")


def judge_numa(report: GpuReport, duty: Duty) -> Iterator[Judged]:
    """A GPU and its NIC are at the same socket."""
    for endpoint in duty.endpoints:
        gpu, nic = report.gpus.get(endpoint.gpu_uuid), report.nics.get(endpoint.nic)
        if gpu is None or nic is None:
            continue
        if gpu.numa is None or nic[1] is None:
            yield Judged(None, "the firmware does not say the NUMA nodes", endpoint.name)
        else:
            said = f"GPU at node {gpu.numa}, NIC at node {nic[1]}"
            yield Judged(gpu.numa == nic[1], said, endpoint.name)
