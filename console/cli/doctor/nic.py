"""Checks of the site's NICs on a server: light, link, names, other managers, virtual functions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from console.cli.doctor.access import MachineAccess
from console.cli.doctor.finding import Duty, Judged
from container_mgr.hardware import sysfs as hardware

_UP = 1
_KERNEL_NAME = "1"
"""``name_assign_type`` of a name that the kernel numbered, which may change at the next boot."""
FEC_FROM_MBPS = 50_000
"""Links of this speed and more need error correction."""


@dataclass(slots=True, frozen=True)
class NicState:
    """A NIC of the site as the server has it. Empty and None are unknown."""

    name: str
    mac: str = ""
    mtu: int = 0
    is_up: bool = False
    carrier: bool | None = None
    speed_mbps: int | None = None
    name_is_stable: bool | None = None
    manager: str | None = None
    """``networkd`` or ``NetworkManager``; empty for none, None when it is not known."""
    driver: str = ""
    firmware: str = ""
    autoneg: str = ""
    fec: str = ""
    rx_dbm: str = ""
    tx_dbm: str = ""
    alarms: tuple[str, ...] | None = None
    """Alarms of the optic; None when it reports none of them."""
    physical: str = ""
    """The interface whose virtual function it is."""
    physical_mtu: int = 0
    trusted: bool | None = None


@dataclass(slots=True, frozen=True)
class SiteNics:
    """The NICs of the site that are here, by name."""

    nics: Mapping[str, NicState] = field(default_factory=dict)
    by_mac: Mapping[str, str] = field(default_factory=dict)
    """Physical interfaces of this network namespace by address."""
    others: int | None = None
    """Other network namespaces that may have a NIC; None when they cannot be seen."""


def read_nics(machine: MachineAccess, duty: Duty) -> SiteNics:
    """Read every NIC of the site that this network namespace has."""
    base = "sys/class/net"
    physical = [n for n in machine.names(base) if machine.at(f"{base}/{n}/device").exists()]
    by_mac = {machine.text(f"{base}/{name}/address").lower(): name for name in physical}
    managed = _managed_by_network_manager(machine)
    present = [e.nic for e in duty.endpoints if machine.at(f"{base}/{e.nic}").exists()]
    nics = {name: _nic(machine, name, managed) for name in dict.fromkeys(present)}
    spaces = other_namespaces(machine)
    others = None if spaces is None else sum(_may_have_nic(machine, s) for s in spaces.values())
    return SiteNics(nics, by_mac, others)


@dataclass(slots=True, frozen=True)
class NetworkNamespace:
    """A network namespace by one of its processes, or by its name below ``/run/netns``."""

    name: str
    process: int | None = None

    def __str__(self) -> str:
        return self.name if self.process is None else f"{self.name} ({self.process})"


def other_namespaces(machine: MachineAccess) -> dict[str, NetworkNamespace] | None:
    """Return all but the first process's, by their id; None when this user cannot see them."""
    own = _namespace(machine, 1)
    if not own:
        return None
    found = {}
    for name in machine.names("run/netns"):
        with suppress(OSError):
            number = machine.at(f"run/netns/{name}").stat().st_ino
            found[f"net:[{number}]"] = NetworkNamespace(name)
    for process, name in machine.processes().items():
        space = _namespace(machine, process)
        if space:
            found[space] = NetworkNamespace(name, process)
    found.pop(own, None)
    return found


def _may_have_nic(machine: MachineAccess, space: NetworkNamespace) -> bool:
    """Return whether it has, or may have, more than a loopback."""
    table = machine.text(f"proc/{space.process}/net/dev") if space.process else ""
    names = [line.partition(":")[0].strip() for line in table.splitlines() if ":" in line]
    return not names or any(name != "lo" for name in names)


def _namespace(machine: MachineAccess, process: int) -> str:
    with suppress(OSError):
        return str(machine.at(f"proc/{process}/ns/net").readlink())
    return ""


def _nic(machine: MachineAccess, name: str, managed: frozenset[str] | None) -> NicState:
    base = f"sys/class/net/{name}"
    seen = hardware.nic(name, machine.at("sys"))
    carrier = machine.text(f"{base}/carrier")
    assigned = machine.text(f"{base}/name_assign_type")
    lines = _fields(machine.run(["ethtool", name]))
    driver = _fields(machine.run(["ethtool", "-i", name]))
    fec = _fields(machine.run(["ethtool", "--show-fec", name]))
    optic = _fields(machine.run(["ethtool", "-m", name]))
    physical, physical_mtu, trusted = _parent(machine, name)
    return NicState(
        name=name,
        mac=machine.text(f"{base}/address").lower(),
        mtu=seen.mtu if seen else 0,
        is_up=bool(_number(machine.text(f"{base}/flags"), 16) & _UP),
        carrier=carrier == "1" if carrier in ("0", "1") else None,
        speed_mbps=_number(machine.text(f"{base}/speed")) or None,
        name_is_stable=assigned != _KERNEL_NAME if assigned else None,
        manager=_manager(machine, name, managed),
        driver=driver.get("driver", seen.driver if seen else ""),
        firmware=driver.get("firmware-version", ""),
        autoneg=lines.get("Auto-negotiation", "").lower(),
        fec=fec.get("Active FEC encoding", fec.get("Active FEC encodings", "")),
        rx_dbm=_power(optic, ("receiver signal average", "rcvr signal avg")),
        tx_dbm=_power(optic, ("laser output power", "transmit avg optical power")),
        alarms=_alarms(optic),
        physical=physical,
        physical_mtu=physical_mtu,
        trusted=trusted,
    )


def _fields(text: str | None) -> dict[str, str]:
    pairs = [line.partition(":") for line in (text or "").splitlines()]
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}


def _number(text: str, base: int = 10) -> int:
    with suppress(ValueError):
        return max(0, int(text, base))
    return 0


def _power(optic: Mapping[str, str], names: Sequence[str]) -> str:
    for key, value in optic.items():
        match = re.search(r"(-?\d+\.\d+) dBm", value)
        if match and key.lower().startswith(tuple(names)) and "threshold" not in key.lower():
            return match[1]
    return ""


def _alarms(optic: Mapping[str, str]) -> tuple[str, ...] | None:
    flags = {k: v for k, v in optic.items() if "power low alarm" in k and v in ("On", "Off")}
    return tuple(key for key, value in flags.items() if value == "On") if flags else None


def _parent(machine: MachineAccess, name: str) -> tuple[str, int, bool | None]:
    device = f"sys/class/net/{name}/device"
    parents = machine.names(f"{device}/physfn/net")
    if not parents:
        return "", 0, None
    parent, own, trusted = parents[0], machine.link(device), None
    functions = [n for n in machine.names(f"{device}/physfn") if re.fullmatch(r"virtfn\d+", n)]
    index = next((int(n[6:]) for n in functions if machine.link(f"{device}/physfn/{n}") == own), -1)
    links = machine.json(["ip", "-j", "-d", "link", "show", "dev", parent])
    with suppress(AttributeError, TypeError, LookupError, StopIteration):
        entry = next(v for v in links[0]["vfinfo_list"] if v.get("vf") == index)
        trusted = entry["trust"] in (True, "on") if "trust" in entry else None
    return parent, _number(machine.text(f"{device}/physfn/net/{parent}/mtu")), trusted


def _manager(machine: MachineAccess, name: str, managed: frozenset[str] | None) -> str | None:
    index = machine.text(f"sys/class/net/{name}/ifindex")
    state = machine.text(f"run/systemd/netif/links/{index}")
    if "ADMIN_STATE=" in state and "ADMIN_STATE=unmanaged" not in state:
        return "networkd"
    if managed is None:
        return None
    return "NetworkManager" if name in managed else ""


def _managed_by_network_manager(machine: MachineAccess) -> frozenset[str] | None:
    if not machine.at("run/NetworkManager").exists():
        return frozenset()
    text = machine.run(["nmcli", "-t", "-f", "DEVICE,STATE", "device", "status"])
    if text is None:
        return None
    pairs = [line.rpartition(":") for line in text.splitlines()]
    return frozenset(name for name, _, state in pairs if state != "unmanaged")


def judge_present(report: SiteNics, duty: Duty) -> Iterator[Judged]:
    """Each NIC of the site is here, or may be in a container."""
    for endpoint in duty.endpoints:
        nic, mac = report.nics.get(endpoint.nic), endpoint.mac.lower()
        other = report.by_mac.get(mac, endpoint.nic)
        if other != endpoint.nic:
            fix = f"a .link file that names it by its address: MACAddress={mac}"
            yield Judged(False, f"{other} has its address {mac}", endpoint.nic, fix)
        elif nic is not None:
            firmware = nic.firmware or "unknown"
            yield Judged(True, f"{mac}, {nic.driver}, firmware {firmware}", endpoint.nic)
        elif report.others != 0:
            count = "any" if report.others is None else report.others
            said = f"not here; it may be in one of {count} other network namespaces"
            yield Judged(None, said, endpoint.nic)
        else:
            yield Judged(False, "not here", endpoint.nic)


def judge_up(report: SiteNics, _: Duty) -> Iterator[Judged]:
    """The NIC is up, so that it sends light."""
    for nic in report.nics.values():
        yield Judged(nic.is_up, "up" if nic.is_up else "down", nic.name)


def judge_carrier(report: SiteNics, _: Duty) -> Iterator[Judged]:
    """A NIC that is up has a link, unless its endpoint is dark."""
    for nic in report.nics.values():
        if nic.is_up:
            speed = f"{nic.speed_mbps} Mb/s" if nic.speed_mbps else "of unknown speed"
            said = {True: f"link, {speed}", False: "no carrier", None: "not readable"}
            yield Judged(nic.carrier, said[nic.carrier], nic.name)


def judge_light(report: SiteNics, _: Duty) -> Iterator[Judged]:
    """The optic reports enough light both ways."""
    for nic in report.nics.values():
        if nic.physical:
            continue
        said = f"rx {nic.rx_dbm or '?'} dBm, tx {nic.tx_dbm or '?'} dBm"
        if nic.alarms is None:
            yield Judged(None, f"{said}; the optic has no alarms, or ethtool is absent", nic.name)
        else:
            yield Judged(not nic.alarms, "; ".join((said, *nic.alarms)), nic.name)


def judge_fec(report: SiteNics, _: Duty) -> Iterator[Judged]:
    """A fast link corrects errors."""
    for nic in report.nics.values():
        if nic.carrier and not nic.physical and (nic.speed_mbps or 0) >= FEC_FROM_MBPS:
            good = nic.fec.lower() not in ("off", "none") if nic.fec else None
            yield Judged(good, nic.fec or "ethtool does not say it", nic.name)


def judge_autoneg(report: SiteNics, _: Duty) -> Iterator[Judged]:
    """A fast link's speed is fixed: fewer steps until it has carrier."""
    for nic in report.nics.values():
        if nic.carrier and not nic.physical and (nic.speed_mbps or 0) >= FEC_FROM_MBPS:
            good = nic.autoneg == "off" if nic.autoneg in ("on", "off") else None
            yield Judged(good, nic.autoneg or "ethtool does not say it", nic.name)


def judge_name(report: SiteNics, _: Duty) -> Iterator[Judged]:
    """The name stays the same after a reboot."""
    for nic in report.nics.values():
        said = {True: "fixed", False: "numbered by the kernel", None: "not known"}
        yield Judged(nic.name_is_stable, said[nic.name_is_stable], nic.name)


def judge_manager(report: SiteNics, _: Duty) -> Iterator[Judged]:
    """No other program sets the NIC up, down or its addresses."""
    for nic in report.nics.values():
        if nic.manager is None:
            yield Judged(None, "NetworkManager does not answer", nic.name)
        else:
            yield Judged(not nic.manager, nic.manager or "unmanaged", nic.name)


def judge_mtu(report: SiteNics, duty: Duty) -> Iterator[Judged]:
    """The site's MTU fits through the physical interface of a virtual function."""
    wanted = duty.site.mtu if duty.site else None
    for nic in report.nics.values():
        if nic.physical:
            least = wanted or nic.mtu
            said = f"{nic.physical} has {nic.physical_mtu}, the site {least}"
            yield Judged(nic.physical_mtu >= least, said, nic.name)


def judge_trust(report: SiteNics, duty: Duty) -> Iterator[Judged]:
    """A virtual function may get the site's address when it has another."""
    for endpoint in duty.endpoints:
        nic = report.nics.get(endpoint.nic)
        if nic is None or not nic.physical or nic.mac == endpoint.mac.lower():
            continue
        said = f"{nic.mac}, the site has {endpoint.mac.lower()}"
        trust = {True: "trusted", False: "not trusted", None: "trust unknown"}[nic.trusted]
        yield Judged(nic.trusted, f"{said}; {trust}", nic.name)
