"""Checks of the controller's machine: ports, state directory, optical switches, open files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePath

from console.cli.doctor.access import CONNECT_TIMEOUT_S, MachineAccess, in_time
from console.cli.doctor.finding import Duty, Judged
from ocs_driver import DRIVERS
from ocs_driver.address import OcsAddress
from ocs_driver.errors import OcsError

STATE_DIR = "/var/lib/lightloom/controller"
REMOTE = frozenset({"nfs", "nfs4", "cifs", "smb3", "ceph", "glusterfs", "lustre", "9p", "beegfs"})
VOLATILE = frozenset({"tmpfs", "ramfs"})
LEAST_FREE_BYTES = 2 * 2**30
SLOWEST_FSYNC_S = 0.02
"""Each step of a transaction waits for some."""
LEAST_FILES = 4096
"""Two for each aggregator, and one for each reader of the interface."""
_LISTENS = "0A"


@dataclass(slots=True, frozen=True)
class PlaneReport:
    """What the controller's machine has."""

    taken: Mapping[int, str] = field(default_factory=dict)
    """Listening TCP ports: the command line of each's process, empty when it cannot be seen."""
    file_system: str = ""
    free: int | None = None
    fsync_s: float | None = None
    reached: Mapping[str, str | None] = field(default_factory=dict)
    """By optical switch: why it cannot be reached, empty when it can, None when not tried."""
    files: int | None = None
    """How many files the controller may open."""


def read_plane(machine: MachineAccess, duty: Duty) -> PlaneReport:
    """Read what the machine has, and connect to the optical switches."""
    state = duty.options.get("--state-dir") or STATE_DIR
    place = machine.at(state)
    while not place.exists() and place != machine.root:
        place = place.parent
    free, fsync = None, None
    with suppress(OSError):
        free = machine.free_bytes(place)
    with suppress(OSError):
        fsync = machine.fsync_s(place)
    switches = duty.site.switches if duty.site else ()
    tried = in_time([partial(_reach, machine, s.url) for s in switches], 2 * CONNECT_TIMEOUT_S)
    return PlaneReport(
        taken=_taken(machine),
        file_system=_file_system(machine, state),
        free=free,
        fsync_s=fsync,
        reached={
            switch.name: str(said) if isinstance(said, Exception) else said
            for switch, said in zip(switches, tried, strict=True)
        },
        files=_files(machine),
    )


def _reach(machine: MachineAccess, url: str) -> str | None:
    try:
        address = OcsAddress.parse(url)
    except OcsError as error:
        return str(error)
    driver = DRIVERS.get(address.scheme)
    if driver is None:
        return None
    port = address.port or driver.default_port
    try:
        machine.connect(address.host, port)
    except OSError as error:
        return f"{address.host}:{port}: {error.strerror or error}"
    return ""


def _file_system(machine: MachineAccess, state: str) -> str:
    best, kind = -1, ""
    for line in machine.text("proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        fields, said = left.split(" "), right.split(" ")
        if len(fields) < 5 or len(fields[4]) < best:
            continue
        if PurePath(state).is_relative_to(fields[4]):
            best, kind = len(fields[4]), said[0]
    return kind


def _taken(machine: MachineAccess) -> dict[int, str]:
    inodes = {}
    for table in ("proc/net/tcp", "proc/net/tcp6"):
        for line in machine.text(table).splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] == _LISTENS:
                inodes[f"socket:[{fields[9]}]"] = int(fields[1].rpartition(":")[2], 16)
    taken = dict.fromkeys(inodes.values(), "")
    for number in machine.processes() if inodes else ():
        for name in machine.names(f"proc/{number}/fd"):
            with suppress(OSError):
                target = str(machine.at(f"proc/{number}/fd/{name}").readlink())
                if target in inodes:
                    taken[inodes[target]] = _command(machine, number)
    return taken


def _command(machine: MachineAccess, number: int) -> str:
    return machine.text(f"proc/{number}/cmdline").replace("\0", " ").strip()


def _is_controller(command: str) -> bool:
    return "lightloom" in command and "controller" in command.split()


def _files(machine: MachineAccess) -> int | None:
    for number in machine.processes():
        if _is_controller(_command(machine, number)):
            limits = machine.text(f"proc/{number}/limits")
            match = re.search(r"^Max open files +\S+ +(\d+)", limits, re.MULTILINE)
            if match:
                return int(match[1])
    said = machine.run(["systemctl", "show", "--property=LimitNOFILE", "lightloom-controller"])
    with suppress(ValueError):
        return int((said or "").strip().partition("=")[2])
    return None


def judge_ports(report: PlaneReport, duty: Duty) -> Iterator[Judged]:
    """The ports that the controller listens at are free, or its own."""
    if duty.site is None:
        return
    wanted = [duty.options.get("--api-listen") or duty.site.api_listen]
    if not (duty.options.get("--openflow-netns") or duty.site.openflow_netns):
        wanted.append(duty.options.get("--openflow-listen") or duty.site.openflow_listen)
    for address in wanted:
        port = address.rpartition(":")[2]
        owner = report.taken.get(int(port)) if port.isdecimal() else None
        if not port.isdecimal():
            yield Judged(False, "not HOST:PORT", address)
        elif owner is None:
            yield Judged(True, "free", address)
        elif not owner:
            yield Judged(None, "taken by a process that this user cannot see", address)
        elif _is_controller(owner):
            yield Judged(True, "the controller's", address)
        else:
            yield Judged(False, f"taken by {owner[:80]}", address)


def judge_disk(report: PlaneReport, _: Duty) -> Iterator[Judged]:
    """The state is on a disk of this machine, which keeps it over a reboot."""
    kind = report.file_system
    if not kind:
        yield Judged(None, "its file system is not known")
    else:
        bad = kind in REMOTE | VOLATILE or kind.startswith("fuse")
        yield Judged(not bad, kind)


def judge_room(report: PlaneReport, _: Duty) -> Iterator[Judged]:
    """The disk has room."""
    if report.free is None:
        yield Judged(None, "not readable")
    else:
        yield Judged(report.free >= LEAST_FREE_BYTES, f"{report.free / 2**30:.1f} GiB free")


def judge_fsync(report: PlaneReport, _: Duty) -> Iterator[Judged]:
    """The disk writes durably in time."""
    if report.fsync_s is None:
        yield Judged(None, "this user cannot write there, or its file system cannot tell")
    else:
        yield Judged(report.fsync_s <= SLOWEST_FSYNC_S, f"{1000 * report.fsync_s:.1f} ms")


def judge_switches(report: PlaneReport, _: Duty) -> Iterator[Judged]:
    """Every optical switch accepts a connection."""
    for name, problem in report.reached.items():
        if problem is None:
            yield Judged(None, "its URL has no port", name)
        else:
            yield Judged(not problem, problem or "accepts connections", name)


def judge_files(report: PlaneReport, _: Duty) -> Iterator[Judged]:
    """The controller may open enough files."""
    if report.files is None:
        yield Judged(None, "no unit, and the controller does not run")
    else:
        yield Judged(report.files >= LEAST_FILES, str(report.files))
