"""Checks that servers and the controller's machine share: site, clock, certificates, proxies."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from console.cli.doctor.access import MachineAccess
from console.cli.doctor.finding import CheckedRole, Duty, Judged
from console.cli.install.parts import CONFIGURATION
from container_mgr import users
from container_mgr.kernel import cgroup
from pki.credentials import Credentials
from pki.errors import TrustError
from pki.names import CONTROLLER, agent_name

RENEW = timedelta(days=30)
_PROXIES = ("https_proxy", "http_proxy", "all_proxy")


@dataclass(slots=True, frozen=True)
class TrustState:
    """A folder of certificates: until when, or why it cannot be used."""

    folder: str
    expires: datetime | None = None
    problem: str = ""
    unreadable: bool = False
    fix: str = ""


@dataclass(slots=True, frozen=True)
class HostReport:
    """What the machine has around its devices."""

    now: datetime
    synchronised: bool | None = None
    trust: tuple[TrustState, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of the daemon and of the machine; names in lower case."""
    selinux: str = ""
    """``1`` while enforcing; empty without SELinux."""
    apparmor: bool = False
    freezer: str = ""
    """Where containers are frozen; empty for nowhere."""
    freezer_problem: str = ""


def read_host(machine: MachineAccess, duty: Duty) -> HostReport:
    """Read the files and ask the clock's service."""
    freezer, problem = "", ""
    try:
        freezer = str(cgroup.freezer_mount(machine.at("proc")))
    except (OSError, LookupError) as error:
        problem = str(error)
    return HostReport(
        now=machine.now(),
        synchronised=_synchronised(machine),
        trust=tuple(_trust(machine, *folder) for folder in _folders(duty)),
        variables=_variables(machine, duty.role),
        selinux=machine.text("sys/fs/selinux/enforce"),
        apparmor=machine.text("sys/module/apparmor/parameters/enabled") == "Y",
        freezer=freezer,
        freezer_problem=problem,
    )


def _synchronised(machine: MachineAccess) -> bool | None:
    said = machine.run(["timedatectl", "show", "--property=NTPSynchronized", "--value"])
    if (said or "").strip() in ("yes", "no"):
        return (said or "").strip() == "yes"
    tracking = machine.run(["chronyc", "-c", "tracking"])
    return None if not tracking else tracking.strip().split(",")[-1] == "Normal"


def _folders(duty: Duty) -> list[tuple[str, str]]:
    if duty.role is CheckedRole.AGENT:
        folder = duty.options.get("--tls") or f"{CONFIGURATION}/tls"
        return [(folder, agent_name(duty.server))] if duty.server else []
    folders = [(duty.options.get("--agent-tls") or f"{CONFIGURATION}/controller-tls", CONTROLLER)]
    if duty.site is None or any(a.tls for a in duty.site.aggregators):
        own = duty.options.get("--openflow-tls") or f"{CONFIGURATION}/openflow-tls"
        folders.append((own, CONTROLLER))
    return folders


def _trust(machine: MachineAccess, folder: str, name: str) -> TrustState:
    try:
        own = Credentials.load(machine.at(folder), name, now=machine.now())
    except TrustError as error:
        unreadable = isinstance(error.__cause__, PermissionError)
        return TrustState(folder, None, error.message, unreadable, error.hint)
    except OSError as error:
        return TrustState(folder, None, str(error.strerror), unreadable=True)
    return TrustState(folder, own.expires)


def _variables(machine: MachineAccess, role: CheckedRole) -> dict[str, str]:
    text = "\n".join(
        machine.text(path) for path in ("etc/environment", f"{CONFIGURATION}/{role}.env")
    )
    pairs = [line.strip().removeprefix("export ").partition("=") for line in text.splitlines()]
    return {k.lower(): v.strip("\"'") for k, equals, v in pairs if equals and k[:1] != "#"}


def judge_site(_: HostReport, duty: Duty) -> Iterator[Judged]:
    """The site file is valid."""
    if duty.site is not None:
        yield Judged(True, f"site {duty.site.name}")
    else:
        given = "no site file" not in duty.problem
        yield Judged(False if given else None, duty.problem)


def judge_server(_: HostReport, duty: Duty) -> Iterator[Judged]:
    """The machine is a server of the site."""
    if duty.site is None:
        return
    names = [server.name for server in duty.site.servers]
    if not duty.server:
        yield Judged(None, f"it is not known which of {', '.join(names)} this is")
    elif duty.server not in names:
        yield Judged(False, f"the site has no {duty.server}; it has {', '.join(names)}")
    else:
        yield Judged(True, duty.server)


def judge_clock(report: HostReport, _: Duty) -> Iterator[Judged]:
    """The clock follows a time server; certificates and causes of events need it."""
    said = {True: "synchronised", False: "not synchronised", None: "no time service answers"}
    yield Judged(report.synchronised, said[report.synchronised])


def judge_trust(report: HostReport, _: Duty) -> Iterator[Judged]:
    """Certificates are there, valid, and of the right name."""
    for own in report.trust:
        if own.expires is None:
            good = None if own.unreadable else False
            yield Judged(good, own.problem, own.folder, own.fix)
        else:
            yield Judged(True, "valid", own.folder)


def judge_renewal(report: HostReport, _: Duty) -> Iterator[Judged]:
    """Certificates do not expire soon."""
    for own in report.trust:
        if own.expires is not None:
            soon = own.expires - report.now <= RENEW
            yield Judged(not soon, f"{own.expires:%Y-%m-%d}", own.folder)


def judge_proxy(report: HostReport, duty: Duty) -> Iterator[Judged]:
    """The site's own addresses are not asked through a proxy."""
    proxy = next((report.variables[n] for n in _PROXIES if report.variables.get(n)), "")
    if not proxy:
        yield Judged(True, "none")
    elif duty.site is None:
        yield Judged(None, f"{proxy}; the site's addresses are not known")
    else:
        own = [duty.site.api_listen]
        if duty.role is CheckedRole.CONTROLLER:
            own = [server.agent for server in duty.site.servers]
        hosts = dict.fromkeys(address.rpartition(":")[0].strip("[]") for address in own)
        spared = report.variables.get("no_proxy", "").replace(" ", "").split(",")
        caught = [host for host in hosts if not is_spared(host, spared)]
        said = f"{proxy} takes {', '.join(caught)}" if caught else f"{proxy}, not for the site"
        yield Judged(not caught, said)


def is_spared(host: str, spared: Sequence[str]) -> bool:
    """Return whether NO_PROXY keeps a host from the proxy. Loopback and wildcards need none."""
    address = None
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
    if host in ("", "localhost") or (address and (address.is_loopback or address.is_unspecified)):
        return True
    for entry in filter(None, spared):
        name = entry.lstrip("*").lstrip(".")
        if entry == "*" or host == name or host.endswith(f".{name}"):
            return True
        with suppress(ValueError):
            if address and address in ipaddress.ip_network(entry, strict=False):
                return True
    return False


def judge_users(_: HostReport, duty: Duty) -> Iterator[Judged]:
    """The agent permits the users and groups of the site's projects."""
    if duty.site is None:
        return
    try:
        low, high = users.parse_range(duty.options.get("--uids") or "1000-60000")
        usual = users.parse_user(duty.options.get("--user") or str(users.DEFAULT_ID))
    except ValueError as error:
        yield Judged(False, f"the agent's --user and --uids: {error}")
        return
    every = {"default": duty.site.users.default, **duty.site.users.projects}
    bad = [
        f"{kind} {number} of {project}"
        for project, user in every.items()
        for kind, number, own in (("uid", user.uid, usual.uid), ("gid", user.gid, usual.gid))
        if number is not None and number != own and not low <= number <= high
    ]
    yield Judged(not bad, f"{', '.join(bad) or 'all'}; the agent permits {low} to {high}")


def judge_lsm(report: HostReport, _: Duty) -> Iterator[Judged]:
    """No security module refuses containers the files that the agent gives them."""
    if report.selinux == "1":
        yield Judged(False, "SELinux is enforcing")
    else:
        permissive = "SELinux is permissive" if report.selinux else "no SELinux"
        yield Judged(True, f"AppArmor; {permissive}" if report.apparmor else permissive)


def judge_freezer(report: HostReport, _: Duty) -> Iterator[Judged]:
    """The agent freezes containers itself; the engine takes 50 ms each way."""
    yield Judged(bool(report.freezer), report.freezer or report.freezer_problem)
