"""Reads a server's NICs, RDMA devices and disks from sysfs, whose root is an argument.

The layout is described in Documentation/ABI/stable/sysfs-class-infiniband and
Documentation/ABI/testing/sysfs-class-net of the kernel.
"""

from __future__ import annotations

import ipaddress
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SYSFS = Path("/sys")
_ROCE_V2 = "RoCE v2"


@dataclass(slots=True, frozen=True)
class Nic:
    """One network interface. ``physical`` is the PCI address of a virtual function's parent."""

    name: str
    mtu: int
    driver: str = ""
    pci: str = ""
    physical: str = ""
    rdma_device: str = ""


@dataclass(slots=True, frozen=True)
class RdmaDevice:
    """One RDMA device: its uverbs node and the interfaces of its ports."""

    name: str
    uverbs: str
    nics: tuple[str, ...]


@dataclass(slots=True, frozen=True)
class Gid:
    """One entry of a GID table. ``ipv4`` is the address that it maps, if any."""

    index: int
    kind: str
    nic: str
    ipv4: str = ""


def nic(name: str, sysfs: Path = SYSFS) -> Nic | None:
    """Return an interface; None when none has this name."""
    base = sysfs / "class/net" / name
    if not base.exists():
        return None
    device = base / "device"
    rdma = [d.name for d in rdma_devices(sysfs) if name in d.nics]
    return Nic(
        name=name,
        mtu=int(_text(base / "mtu") or 0),
        driver=_link(device / "driver"),
        pci=_link(device) if device.exists() else "",
        physical=_link(device / "physfn"),
        rdma_device=rdma[0] if rdma else "",
    )


def rdma_devices(sysfs: Path = SYSFS) -> list[RdmaDevice]:
    """Return all RDMA devices of this network namespace."""
    uverbs = {
        _text(node / "ibdev"): node.name
        for node in sorted((sysfs / "class/infiniband_verbs").glob("uverbs*"))
    }
    found = []
    for base in sorted((sysfs / "class/infiniband").glob("*")):
        nics = {entry.name for entry in (base / "device/net").glob("*")}
        nics |= {gid.nic for gid in gids(base.name, sysfs) if gid.nic}
        if not nics and (base / "parent").exists():  # soft RoCE names the link below it
            nics = {_text(base / "parent")}
        found.append(RdmaDevice(base.name, uverbs.get(base.name, ""), tuple(sorted(nics))))
    return found


def gids(device: str, sysfs: Path = SYSFS, port: int = 1) -> list[Gid]:
    """Return the GID table of a device's port without the empty entries."""
    base = sysfs / "class/infiniband" / device / "ports" / str(port)
    found = []
    for path in sorted((base / "gids").glob("*"), key=lambda p: int(p.name)):
        with suppress(ValueError):
            address = ipaddress.IPv6Address(_text(path))
            if int(address) == 0:
                continue
            mapped = address.ipv4_mapped
            found.append(
                Gid(
                    index=int(path.name),
                    kind=_text(base / "gid_attrs/types" / path.name),
                    nic=_text(base / "gid_attrs/ndevs" / path.name),
                    ipv4=str(mapped) if mapped else "",
                )
            )
    return found


def gid_index(table: list[Gid], ip: str) -> int | None:
    """Return the index of the RoCEv2 entry that maps ``ip``; None without one."""
    return next((g.index for g in table if g.kind == _ROCE_V2 and g.ipv4 == ip), None)


def rdma_nodes(device: RdmaDevice) -> tuple[str, ...]:
    """Return the nodes below ``/dev`` that a container needs for this RDMA device only."""
    return (f"infiniband/{device.uverbs}", "infiniband/rdma_cm")


def exclusive_rdma(sysfs: Path = SYSFS) -> bool | None:
    """Return whether each RDMA device belongs to one network namespace; None without RDMA."""
    shared = _text(sysfs / "module/ib_core/parameters/netns_mode")
    return None if not shared else shared.upper() in ("N", "0")


def whole_disk(path: Path, sysfs: Path = SYSFS) -> str:
    """Return the disk of ``path`` (``/dev/sda``); empty when it is not on a disk."""
    try:
        number = path.stat().st_dev
    except OSError:
        return ""
    block = sysfs / "dev/block" / f"{os.major(number)}:{os.minor(number)}"
    if not block.exists():
        return ""
    block = block.resolve()
    if (block / "partition").exists():
        block = block.parent
    return f"/dev/{block.name}"


def _link(path: Path) -> str:
    try:
        return path.resolve(strict=True).name
    except OSError:
        return ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
