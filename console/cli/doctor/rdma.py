"""Checks of RDMA on the site's NICs: namespaces, GIDs, the lossless queue, congestion, memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from console.cli.doctor.access import MachineAccess
from console.cli.doctor.finding import Duty, Judged
from console.cli.doctor.nic import other_namespaces
from container_mgr.hardware import sysfs as hardware

ROCE_MTU = 4200
"""Smallest interface MTU for RoCE's largest path MTU: 4,096 bytes and headers."""
_DCBX_WORDS = frozenset({"host", "lld-managed", "cee", "ieee", "static"})


@dataclass(slots=True, frozen=True)
class RoceState:
    """What RDMA of one NIC has. None is unknown."""

    nic: str
    device: str
    mtu: int
    gids: int
    """Entries of RoCE v2 in its GID table."""
    lossless: frozenset[int] | None = None
    """Priorities with flow control."""
    priorities: Mapping[int, int] | None = None
    """Priority of each DSCP."""
    dcbx: frozenset[str] | None = None
    congestion: Mapping[int, bool] | None = None
    """Whether both ends of congestion control are on, by priority."""


@dataclass(slots=True, frozen=True)
class RdmaReport:
    """The server's RDMA."""

    exclusive: bool | None = None
    namespaces: tuple[str, ...] = ()
    """A process or name of each other network namespace that this user can see."""
    nics: tuple[RoceState, ...] = ()
    locked: str = ""
    """How much memory the engine's containers may pin; empty when it does not run."""


def read_rdma(machine: MachineAccess, duty: Duty) -> RdmaReport:
    """Read the RDMA devices of the site's NICs."""
    sysfs = machine.at("sys")
    found = []
    for name in dict.fromkeys(e.nic for e in duty.endpoints):
        nic = hardware.nic(name, sysfs)
        if nic is not None and nic.rdma_device:
            found.append(_roce(machine, nic))
    return RdmaReport(
        exclusive=hardware.exclusive_rdma(sysfs),
        namespaces=tuple(map(str, (other_namespaces(machine) or {}).values())),
        nics=tuple(found),
        locked=_locked(machine),
    )


def _roce(machine: MachineAccess, nic: hardware.Nic) -> RoceState:
    table = hardware.gids(nic.rdma_device, machine.at("sys"))
    pfc = machine.json(["dcb", "-j", "pfc", "show", "dev", nic.name])
    app = machine.json(["dcb", "-j", "app", "show", "dev", nic.name])
    words = frozenset((machine.run(["dcb", "dcbx", "show", "dev", nic.name]) or "").split())
    lossless, priorities = None, None
    with suppress(AttributeError, TypeError, ValueError, KeyError):
        lossless = frozenset(int(p) for p, is_on in pfc["prio_pfc"].items() if is_on)
    with suppress(AttributeError, TypeError, ValueError):
        priorities = {int(dscp): int(prio) for dscp, prio in app.get("dscp_prio") or ()}
    return RoceState(
        nic=nic.name,
        device=nic.rdma_device,
        mtu=nic.mtu,
        gids=sum(gid.kind == "RoCE v2" for gid in table),
        lossless=lossless,
        priorities=priorities,
        dcbx=words & _DCBX_WORDS or None,
        congestion=_congestion(machine, nic.name),
    )


def _congestion(machine: MachineAccess, nic: str) -> dict[int, bool] | None:
    base = f"sys/class/net/{nic}/ecn"
    ends = [f"{base}/{end}/enable" for end in ("roce_np", "roce_rp")]
    priorities = [int(name) for name in machine.names(ends[0]) if name.isdecimal()]
    found = {p: all(machine.text(f"{end}/{p}") == "1" for end in ends) for p in priorities}
    return found or None


def _locked(machine: MachineAccess) -> str:
    for number, name in machine.processes().items():
        if name == "dockerd":
            limits = machine.text(f"proc/{number}/limits")
            match = re.search(r"^Max locked memory +\S+ +(\S+)", limits, re.MULTILINE)
            return match[1] if match else ""
    return ""


def judge_device(report: RdmaReport, duty: Duty) -> Iterator[Judged]:
    """Where the site names a DSCP for RoCE, its NICs have RDMA."""
    if duty.endpoints:
        said = ", ".join(f"{n.device} on {n.nic}" for n in report.nics)
        wanted = duty.site is not None and duty.site.dscp is not None
        yield Judged(bool(said) or not wanted, said or "no RDMA device; jobs use TCP")


def judge_namespaces(report: RdmaReport, _: Duty) -> Iterator[Judged]:
    """A container gets an RDMA device of its own."""
    if not report.nics:
        return
    if report.exclusive is not False:
        yield Judged(report.exclusive, "exclusive" if report.exclusive else "not known")
        return
    users = report.namespaces
    busy = f"; kept busy by {len(users)} network namespaces: {', '.join(users[:4])}"
    yield Judged(False, f"shared: containers get no RDMA device{busy if users else ''}")


def judge_gids(report: RdmaReport, _: Duty) -> Iterator[Judged]:
    """The device speaks RoCE v2."""
    for nic in report.nics:
        yield Judged(nic.gids > 0, f"{nic.gids} of RoCE v2", nic.nic)


def judge_mtu(report: RdmaReport, duty: Duty) -> Iterator[Judged]:
    """Frames are large enough for RoCE's largest path MTU; the agent sets the site's."""
    for nic in report.nics:
        mtu = (duty.site.mtu if duty.site else None) or nic.mtu
        yield Judged(mtu >= ROCE_MTU, str(mtu), nic.nic)


def judge_lossless(report: RdmaReport, _: Duty) -> Iterator[Judged]:
    """Some priority has flow control."""
    for nic in report.nics:
        if nic.lossless is None:
            yield Judged(None, "dcb does not say it", nic.nic)
        else:
            said = ", ".join(map(str, sorted(nic.lossless))) or "no lossless queue"
            yield Judged(bool(nic.lossless), said, nic.nic)


def judge_dscp(report: RdmaReport, duty: Duty) -> Iterator[Judged]:
    """The DSCP of RoCE leads to a lossless queue; a NIC without a map trusts the VLAN tag."""
    dscp = duty.site.dscp if duty.site else None
    for nic in report.nics:
        if nic.priorities is None or nic.lossless is None:
            yield Judged(None, "dcb does not say it", nic.nic)
        elif dscp is None:
            good = any(p in nic.lossless for p in nic.priorities.values()) or not nic.lossless
            yield Judged(good, f"{len(nic.priorities)} mapped; the site names none", nic.nic)
        elif dscp not in nic.priorities:
            yield Judged(False, f"DSCP {dscp} is not mapped", nic.nic)
        else:
            queue = nic.priorities[dscp]
            good = queue in nic.lossless or not nic.lossless
            kind = "a lossless" if queue in nic.lossless else "a lossy"
            yield Judged(good, f"DSCP {dscp} to {kind} queue, {queue}", nic.nic)


def judge_dcbx(report: RdmaReport, _: Duty) -> Iterator[Judged]:
    """The host sets the queues, and not the NIC's firmware."""
    for nic in report.nics:
        if nic.dcbx is None:
            yield Judged(None, "dcb does not say it", nic.nic)
        else:
            said = " ".join(sorted(nic.dcbx))
            yield Judged("host" in nic.dcbx and "lld-managed" not in nic.dcbx, said, nic.nic)


def judge_congestion(report: RdmaReport, duty: Duty) -> Iterator[Judged]:
    """Both ends of congestion control are on for the queue of RoCE."""
    dscp = duty.site.dscp if duty.site else None
    for nic in report.nics:
        queue = None if dscp is None else (nic.priorities or {}).get(dscp)
        if nic.congestion is None or queue is None or queue not in nic.congestion:
            yield Judged(None, "the driver shows none for this queue", nic.nic)
        else:
            is_on = nic.congestion[queue]
            yield Judged(is_on, f"{'on' if is_on else 'off'} for queue {queue}", nic.nic)


def judge_locked(report: RdmaReport, _: Duty) -> Iterator[Judged]:
    """Containers may pin memory without limit."""
    if report.nics:
        good = report.locked == "unlimited" if report.locked else None
        yield Judged(good, report.locked or "dockerd is not found")
